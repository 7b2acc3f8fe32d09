# cuheap. `make help` lists the targets; variables: O= V= SAN= DEV= PREFIX= DESTDIR= CC=.
O       ?= build
PREFIX  ?= /usr/local
VERSION := 0.1.0
SHELL   := /bin/bash
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
# Goals are taken one after the other; what they build is built on all processors.
parallel = $(MAKE) --no-print-directory -j$(shell nproc)

ifneq ($(V),1)
Q := @
say = @printf '  %-7s %s\n' "$(1)" "$(patsubst $(O)/%,%,$@)"
endif

# ---- flags ---------------------------------------------------------------------------------------
# DEV=1 turns warnings into errors; `make check` sets it.
WARN    := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
           -Wwrite-strings -Wundef -Wformat=2 -Wvla $(if $(DEV),-Werror)
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all)
BASE    := -std=gnu11 -D_GNU_SOURCE -g -O2 -fno-omit-frame-pointer $(WARN) $(SANFLAGS) \
           -Iinclude -DCUHEAP_VERSION='"$(VERSION)"' -MMD -MP $(CFLAGS)
# lib/ lives in other people's processes: hidden names, no lazy binding, glibc alone.
LIB_CFLAGS  := $(BASE) -fPIC -fvisibility=hidden -fno-semantic-interposition -Ilib
LIB_LDFLAGS := -shared -Wl,-soname,libcuheap.so -Wl,--version-script=lib/exports.map -Wl,-z,now -Wl,-Bsymbolic \
               -Wl,-z,relro $(if $(SAN),,-Wl,-z,defs) -Wl,--no-as-needed -l:libdl.so.2
TOOL_CFLAGS := $(BASE) -Itools
TOOL_LIBS   := -ldw -lelf -ljansson -liberty -lm
TEST_LIBS   := -lcriterion -ljansson -lpthread -ldl
CUHEAP_LIBDIR ?= $(PREFIX)/lib/cuheap

obj = $(patsubst %,$(O)/obj/%.o,$(1))
LIB_SRC  := $(wildcard lib/*.c lib/*.S)
TOOL_SRC := $(filter-out tools/main.c,$(wildcard tools/*.c))
SIM_SRC  := $(wildcard tests/simgpu/driver*.c)
RT_SRC   := $(wildcard tests/simgpu/cudart*.c)
PROGRAMS := $(patsubst tests/e2e/programs/%.c,$(O)/e2e/%,$(filter-out tests/e2e/programs/lib_%.c,$(wildcard tests/e2e/programs/*.c)))
PROGLIBS := $(patsubst tests/e2e/programs/lib_%.c,$(O)/e2e/%.so,$(wildcard tests/e2e/programs/lib_*.c))
EXAMPLES := $(patsubst examples/%.c,$(O)/examples/%,$(wildcard examples/*.c))
UNIT     := $(O)/tests/unit-lib $(O)/tests/unit-tools
SIM      := $(O)/simgpu/libcuda.so.1 $(O)/simgpu/libcudart.so $(O)/simgpu/libcudart.a

# ---- what people call ------------------------------------------------------------------------------
.PHONY: all setup demo check check-unit check-e2e check-stress check-asan check-tsan check-gate \
        check-conformity check-python check-pythons check-torch bench soak install uninstall \
        format lint help clean programs
all: $(O)/libcuheap.so $(O)/cuheap $(SIM) ## build library, tool and simulated GPU

setup: ## install what building and testing need (Debian, Ubuntu); elsewhere print it
	$(Q).ci/setup

demo: ## trace an example and print its report (real GPU if there is one)
	$(Q)$(parallel) all $(EXAMPLES)
	$(Q)examples/demo.sh $(O)

check: ## build with warnings as errors and run every test
	$(Q)rm -rf $(O)/logs
	$(Q)for suite in unit e2e python conformity stress gate asan tsan; do $(parallel) DEV=1 check-$$suite || :; done
	$(Q)tests/summary.sh $(O)

check-unit: $(UNIT)
	$(Q)tests/run.sh $(O) unit-lib $(O)/tests/unit-lib
	$(Q)tests/run.sh $(O) unit-tools $(O)/tests/unit-tools

check-e2e: all programs $(O)/tests/e2e $(EXAMPLES)
	$(Q)tests/run.sh $(O) e2e $(O)/tests/e2e

check-python: all programs ## the Python stacks of every CPython found
	$(Q)tests/run.sh $(O) python tests/python/run.sh $(O)

check-pythons: all programs ## the same with further CPythons, fetched from Debian into the build folder
	$(Q)tests/python/fetch.sh $(O)
	$(Q)tests/run.sh $(O) python tests/python/run.sh $(O)

check-stress: all programs $(O)/tests/stress
	$(Q)tests/run.sh $(O) stress $(O)/tests/stress

check-conformity: all $(O)/simgpu/v0/libcuda.so.1 $(O)/simgpu/v1/libcuda.so.1 $(O)/tests/conformity
	$(Q)tests/run.sh $(O) conformity $(O)/tests/conformity

check-torch: all $(O)/tests/torch ## compare with PyTorch's real allocator (550 MB of packages, once)
	$(Q)tests/run.sh $(O) torch tests/torch/check.sh $(O)

check-gate: all programs
	$(Q)tests/run.sh $(O) gate tests/bench/gate.sh $(O)

check-asan: ## the unit tests under AddressSanitizer and UndefinedBehaviorSanitizer
	$(Q)$(MAKE) --no-print-directory O=$(O)-asan SAN=address,undefined DEV=1 $(UNIT:$(O)/%=$(O)-asan/%)
	$(Q)tests/run.sh $(O) asan-lib $(O)-asan/tests/unit-lib
	$(Q)tests/run.sh $(O) asan-tools $(O)-asan/tests/unit-tools

check-tsan: ## the unit tests of the library under ThreadSanitizer
	$(Q)$(MAKE) --no-print-directory O=$(O)-tsan SAN=thread DEV=1 $(O)-tsan/tests/unit-lib
	$(Q)tests/run.sh $(O) tsan-lib $(O)-tsan/tests/unit-lib

bench: ## measure: ns and instructions an event, load time
	$(Q)$(parallel) all programs
	$(Q)tests/bench/bench.sh $(O)

soak: ## 30 minutes of Python under stress, each allocation compared; MINUTES= for another time
	$(Q)$(parallel) all programs
	$(Q)tests/python/soak.sh $(O) $(MINUTES)

install: all ## install to DESTDIR and PREFIX
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(CUHEAP_LIBDIR) $(DESTDIR)$(PREFIX)/include/cuheap \
	    $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/man/man3 $(DESTDIR)$(PREFIX)/share/man/man5
	install -m 755 $(O)/cuheap $(DESTDIR)$(PREFIX)/bin/cuheap
	install -m 755 $(O)/libcuheap.so $(DESTDIR)$(CUHEAP_LIBDIR)/libcuheap.so
	install -m 644 include/cuheap/cuheap.h $(DESTDIR)$(PREFIX)/include/cuheap/
	for s in 1 3 5; do install -m 644 tools/man/*.$$s $(DESTDIR)$(PREFIX)/share/man/man$$s/; done

uninstall: ## remove what install put there
	rm -rf $(DESTDIR)$(PREFIX)/bin/cuheap $(DESTDIR)$(CUHEAP_LIBDIR) $(DESTDIR)$(PREFIX)/include/cuheap \
	    $(addprefix $(DESTDIR)$(PREFIX)/share/man/,$(foreach s,1 3 5,$(patsubst tools/man/%,man$(s)/%,$(wildcard tools/man/*.$(s)))))

SOURCES = $(shell git ls-files '*.c' '*.h' '*.def')
format: ## lay out every source file
	$(Q)clang-format -i $(filter-out %.def,$(SOURCES))

lint: ## layout, static analysis, frame rules
	$(Q).ci/lint

clean: ## remove what was built
	rm -rf $(O) $(O)-asan $(O)-tsan

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

# ---- how it is built -------------------------------------------------------------------------------
$(O)/libcuheap.so: $(call obj,$(LIB_SRC)) lib/exports.map
	$(call say,LINK)
	$(Q)$(CC) $(LIB_CFLAGS) -o $@ $(filter %.o,$^) $(LIB_LDFLAGS)
$(O)/cuheap: $(call obj,$(TOOL_SRC) tools/main.c)
	$(call say,LINK)
	$(Q)$(CC) $(TOOL_CFLAGS) -o $@ $^ $(TOOL_LIBS)
$(O)/simgpu/libcuda.so.1: $(call obj,$(SIM_SRC))
	$(call say,LINK)
	@mkdir -p $(@D)
	$(Q)$(CC) $(BASE) -shared -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic -o $@ $^ -lpthread -ldl
	$(Q)ln -sf libcuda.so.1 $(@D)/libcuda.so
$(O)/simgpu/libcudart.so: $(call obj,$(RT_SRC))
	$(call say,LINK)
	@mkdir -p $(@D)
	$(Q)$(CC) $(BASE) -shared -Wl,-soname,libcudart.so -o $@ $^ -ldl
$(O)/simgpu/libcudart.a: $(call obj,$(RT_SRC))
	$(call say,AR)
	@mkdir -p $(@D)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

# The driver as it was before cuGetProcAddress_v2 (v1) and before both (v0); what a real one answered.
$(O)/simgpu/v%/libcuda.so.1: $(SIM_SRC)
	$(call say,LINK)
	@mkdir -p $(@D)
	$(Q)$(CC) $(BASE) -fPIC -Itests/simgpu -DSIMGPU_PROC_ADDRESS=$* -shared -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic -Wno-missing-prototypes -o $@ $(SIM_SRC) -lpthread -ldl
$(O)/simgpu/conformance: tests/simgpu/conformance.c
	$(call say,CC)
	@mkdir -p $(@D)
	$(Q)$(CC) $(BASE) -Itests/simgpu -o $@ $< -ldl

# A test program links the static runtime look-alike; a line "// LINK: flags" in it adds flags.
programs: $(PROGRAMS) $(PROGLIBS) $(O)/python/probe.so $(O)/simgpu/v0/libcuda.so.1 $(O)/simgpu/v1/libcuda.so.1 $(O)/simgpu/conformance
linkflags = $(shell sed -n 's|^// LINK: ||p' $(1))
$(O)/e2e/%: tests/e2e/programs/%.c $(SIM)
	$(call say,CC)
	@mkdir -p $(@D)
	$(Q)$(CC) $(BASE) -Itests/simgpu -o $@ $< $(O)/simgpu/libcudart.a $(subst @O@,$(O),$(call linkflags,$<)) -lpthread -ldl
$(O)/e2e/%.so: tests/e2e/programs/lib_%.c $(SIM)
	$(call say,CC)
	@mkdir -p $(@D)
	$(Q)$(CC) $(BASE) -Itests/simgpu -fPIC -shared -Wl,-soname,$(@F),-rpath,$(abspath $(@D)) -o $@ $< $(subst @O@,$(O),$(call linkflags,$<)) -lpthread -ldl
$(O)/python/probe.so: tests/python/probe.c $(SIM)
	$(call say,CC)
	@mkdir -p $(@D)
	$(Q)$(CC) $(BASE) -Itests/simgpu -fPIC -shared -o $@ $< $(O)/simgpu/libcuda.so.1 -lpthread -ldl
$(O)/e2e/c10_cuda.so $(O)/e2e/libc10_cuda_stub.so: $(O)/e2e/libc10.so
$(O)/e2e/findings_sites: $(O)/e2e/libnccl_stub.so
$(O)/e2e/c10_cuda_second.so: $(O)/e2e/libc10_second.so
$(O)/examples/%: examples/%.c $(SIM)
	$(call say,CC)
	@mkdir -p $(@D)
	$(Q)$(CC) $(BASE) -ffile-prefix-map=$(CURDIR)=. -Itests/simgpu -o $@ $< $(O)/simgpu/libcudart.a -lpthread -ldl

# ThreadSanitizer and Criterion want the same addresses: a stand-in for the latter then.
PLAIN := $(findstring thread,$(SAN))
# Without the doors: a sanitizer's own look-ups come before it can be called.
$(O)/tests/unit-lib: $(call obj,$(filter-out lib/doors_%,$(LIB_SRC)) $(wildcard tests/unit/lib_*.c) $(if $(PLAIN),tests/unit/plain/plain.c))
	$(call say,LINK)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LIB_CFLAGS) -rdynamic -Wl,--version-script=lib/exports.map -o $@ $^ $(if $(PLAIN),-lpthread -ldl,$(TEST_LIBS))
$(O)/tests/unit-tools: $(call obj,$(TOOL_SRC) $(wildcard tests/unit/tools_*.c))
	$(call say,LINK)
	@mkdir -p $(@D)
	$(Q)$(CC) $(TOOL_CFLAGS) -o $@ $^ $(TOOL_LIBS) $(TEST_LIBS)
$(O)/tests/%: # e2e, conformity and stress: Criterion programs that run others
	$(call say,LINK)
	@mkdir -p $(@D)
	$(Q)$(CC) $(TOOL_CFLAGS) -o $@ $^ $(TOOL_LIBS) $(TEST_LIBS)
$(O)/tests/e2e: $(call obj,$(wildcard tests/e2e/*.c) $(TOOL_SRC))
$(O)/tests/stress: $(call obj,$(wildcard tests/stress/*.c) $(filter tests/e2e/harness.c,$(wildcard tests/e2e/*.c)) $(TOOL_SRC))
$(O)/tests/conformity: $(call obj,$(wildcard tests/conformity/*.c) tests/e2e/harness.c)

$(O)/tests/torch: $(call obj,$(wildcard tests/torch/test_*.c) tests/e2e/harness.c $(TOOL_SRC))

flags_lib   = $(LIB_CFLAGS)
flags_tools = $(TOOL_CFLAGS) -DCUHEAP_LIBDIR='"$(CUHEAP_LIBDIR)"' -DCUHEAP_BUILD='"$(abspath $(O))"'
flags_tests = $(BASE) -fPIC $(if $(PLAIN),-Itests/unit/plain) -Itests/simgpu -Itests/e2e -DCUHEAP_BUILD='"$(abspath $(O))"' -DCUHEAP_CC='"$(CC)"' \
              $(if $(findstring unit/lib_,$<),-Ilib) $(if $(findstring unit/tools_,$<)$(findstring e2e/,$<)$(findstring stress/,$<)$(findstring torch/,$<),-Itools)
$(O)/obj/%.o: %
	$(call say,CC)
	@mkdir -p $(@D)
	$(Q)$(CC) $(flags_$(firstword $(subst /, ,$*))) -c -o $@ $<

-include $(shell find $(O) -path $(O)/pythons -prune -o -name '*.d' -type f -print 2>/dev/null)
