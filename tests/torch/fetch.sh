#!/bin/bash
# fetch.sh FOLDER: puts PyTorch's real allocator (libc10_cuda.so.2.6 and libc10, of Debian 13), what
# it needs and its headers into FOLDER/root, for `make check-torch`. Nothing is installed: apt works
# on lists and sources of its own, in FOLDER, from the mirror that this machine is set up for. The
# download is 550 MB, done once; of it 20 MB are kept. Prints why, and fails, if it cannot be had.
set -u
suite=trixie
packages=(libtorch-cuda-2.6 libtorch-cuda-dev libc6 libstdc++6 libgcc-s1 libnuma1 libcpuinfo0)
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

[ -e "$1/root/complete" ] && exit 0
give_up() {
    echo "$1"
    exit 1
}
for tool in apt-get dpkg-deb; do
    command -v $tool >/dev/null || give_up "no $tool"
done
[ "$(dpkg --print-architecture)" = amd64 ] || give_up 'the package is wanted for amd64'
[ -r $keyring ] || give_up 'no key of Debian archives'
# shellcheck disable=SC2016 # the name is for apt to expand
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Origin: Debian' \
    'Label: Debian' 2>/dev/null | head -n 1)
[ -n "$mirror" ] || give_up 'no Debian mirror among the sources of apt'

mkdir -p "$1"/{lists,cache/archives,debs}/partial && top=$(realpath "$1") || exit 1
: >"$top/status"
cat >"$top/debian.sources" <<END
Types: deb
URIs: $mirror
Suites: $suite
Components: main contrib
Signed-By: $keyring
END
own_apt() {
    apt-get -qq -o Dir::Etc::sourcelist="$top/debian.sources" -o Dir::Etc::sourceparts=- \
        -o Dir::State::lists="$top/lists" -o Dir::State::status="$top/status" \
        -o Dir::Cache="$top/cache" -o APT::Sandbox::User="$(id -un)" "$@" >>"$top/apt.log" 2>&1
}
own_apt update || give_up "no lists of $suite from the mirror, see $top/apt.log"
(cd "$top/debs" && own_apt download "${packages[@]}") ||
    give_up "a package of $suite cannot be had, see $top/apt.log"

# All of the small packages; of the large one two libraries, not its 1.4 GB.
rm -rf "$top/root" && mkdir "$top/root"
for deb in "$top"/debs/*.deb; do
    case $deb in
    */libtorch-cuda-2*) only=(--wildcards '*/libc10*') ;;
    */libtorch-cuda-dev*) only=(--wildcards '*/include/c10/*') ;;
    *) only=() ;;
    esac
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$top/root" "${only[@]}" || give_up "cannot unpack $deb"
done
rm -rf "$top"/{debs,lists,cache}
touch "$top/root/complete"
