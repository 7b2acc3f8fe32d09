#!/bin/bash
# fetch.sh BUILD: CPythons of other Debian releases, unpacked into BUILD/pythons for interpreters.sh
# to find; `make check-pythons`. Nothing is installed: apt runs on state of its own, with the mirror
# that this machine uses. What cannot be had is said and left out.
set -u
mkdir -p "$1/pythons"
build=$(realpath "$1")
suites='bullseye trixie forky sid'
wanted='^python3\.[0-9]+(t|-nogil)?$' # packages
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
multiarch=$(uname -m)-linux-gnu

skip() { echo "  skipped: $1: $2"; }

if ! command -v apt-get >/dev/null || [ ! -f "$keyring" ]; then
    skip all 'no apt of Debian here'
    exit 0
fi
# shellcheck disable=SC2016 # names of apt's own
mirror=$(apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' 2>/dev/null |
    awk '$1 == "Debian" && $2 !~ /security/ { print $2; exit }')
if [ -z "$mirror" ]; then
    skip all 'no mirror of Debian is known here'
    exit 0
fi

# apt on the private state of one suite; nothing counts as installed there.
apt_of() {
    local state=$build/pythons/apt-$1 command=$2
    shift 2
    "$command" -qq \
        -o Dir::Etc::SourceList="$state/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State="$state" -o Dir::State::Lists="$state/lists" \
        -o Dir::State::Status="$state/status" \
        -o Dir::Cache="$state" -o Dir::Cache::Archives="$state/archives" -o Dir::Log="$state" \
        -o Acquire::Languages=none -o APT::Sandbox::User= -o Debug::NoLocking=1 "$@"
}

prepare_suite() {
    local state=$build/pythons/apt-$1
    mkdir -p "$state/lists/partial" "$state/archives/partial"
    : >"$state/status"
    echo "deb [signed-by=$keyring] $mirror $1 main" >"$state/sources.list"
    apt_of "$1" apt-get -o Acquire::http::Timeout=60 update >"$state/log" 2>&1 &&
        ! grep -q '^[EW]:' "$state/log"
}

# The C library of a newer release comes with it and is started by its own loader; that of an older
# one is left out, since this machine's serves its programs too.
write_starter() {
    local folder=$1 root=$1/root python=$1/root/usr/bin/$2 loader start
    loader=$(find "$root/" -name 'ld-linux-*.so.*' | head -n 1)
    start="LD_LIBRARY_PATH=\$libraries exec '$python'"
    [ -z "$loader" ] || start="exec '$loader' --library-path \"\$libraries\" '$python'"
    cat >"$folder/python3" <<END
#!/bin/sh
export PYTHONHOME='$root/usr'
libraries='$root/usr/lib/$multiarch:$root/lib/$multiarch'\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
$start "\$@"
END
    chmod +x "$folder/python3"
}

newer_than_here() {
    local here
    here=$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)
    [ "$1" != "$here" ] && [ "$(printf '%s\n' "$here" "$1" | sort -V | tail -n 1)" = "$1" ]
}

fetch_one() {
    local suite=$1 name=$2 folder=$build/pythons/$2 archives=$build/pythons/apt-$1/archives deb libc
    rm -rf "$folder" "$archives"/*.deb
    mkdir -p "$folder/root"
    apt_of "$suite" apt-get install -y --no-install-recommends --download-only "$name" \
        >"$folder/log" 2>&1 || return 1
    libc=$(find "$archives" -name 'libc6_*.deb' | sed 's/.*libc6_\([0-9.]*[0-9]\).*/\1/')
    for deb in "$archives"/*.deb; do
        case $(basename "$deb") in
        libc6_* | libc-bin_*) newer_than_here "$libc" || continue ;;
        esac
        dpkg -x "$deb" "$folder/root" || return 1
    done
    rm -f "$archives"/*.deb
    write_starter "$folder" "$name"
    "$folder/python3" -c 'import ctypes, sys; print("  fetched:", sys.version.split()[0])'
}

for suite in $suites; do
    if ! prepare_suite "$suite"; then
        skip "$suite" 'its packages cannot be listed'
        continue
    fi
    for name in $(apt_of "$suite" apt-cache search --names-only "$wanted" | cut -d' ' -f1); do
        [ -x "$build/pythons/$name/python3" ] && continue
        fetch_one "$suite" "$name" && continue
        skip "$name of $suite" 'cannot be fetched or does not start'
        rm -rf "$build/pythons/${name:?}"
    done
done
exit 0
