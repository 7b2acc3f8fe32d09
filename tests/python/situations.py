"""Allocates from everywhere that Python code can run from: situations.py FOLDER [SITUATION...]

Each situation is a function; all of them run four times: with the interpreter's lock released and
held during the allocation, with the note taken before the call and inside it (see notes.py). Notes
go to FOLDER/notes.PID.json, of this process and of its forked children. Situations that this
interpreter does not have are named on stdout. Runs on CPython 3.8 and later.
"""

import ast
import asyncio
import contextlib
import ctypes
import functools
import gc
import importlib
import os
import re
import signal
import sys
import tempfile
import threading
import types
import weakref

import notes
from notes import here

VERSION = sys.version_info[:2]
DEPTH = 128  # Python frames kept, the innermost ones

take = notes.free.probe_take
situations = []
once = []  # run in one of the four ways: independent of it, or costly


def situation(function):
    situations.append(function)
    return function


def only_once(function):
    once.append(function)
    return function


def names():
    return {"take": take, "here": here, "__name__": "made"}


def run_source(source, filename="<made>", extra=None):
    space = names()
    space.update(extra or {})
    exec(compile(source, filename, "exec"), space)
    return space


# ---- calls ---------------------------------------------------------------------------------------


@situation
def plain():
    take(here())


@situation
def nested():
    def down(levels):
        if levels:
            return down(levels - 1)
        return take(here())

    down(100)


@situation
def too_deep():
    def down(levels):
        if levels:
            down(levels - 1)
        else:
            take(here())

    down(DEPTH + 60)
    down(300)


@situation
def exactly_deep():
    """As deep as is kept, one less and one more."""
    above = len(notes.stack_here())

    def down(levels):
        if levels:
            down(levels - 1)
        else:
            take(here())

    for depth in (DEPTH - 1, DEPTH, DEPTH + 1):
        down(depth - above - 1)


@situation
def lambdas():
    (lambda: take(here()))()
    (lambda f=lambda: take(here()): f())()
    functools.partial(lambda a, b: take(here()), 1, b=2)()


@situation
def defaults_and_decorators():
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            take(here())
            return function(*args, **kwargs)

        return wrapper

    def at_definition(size):
        take(here())
        return decorate

    @decorate
    @at_definition(
        take(0)
    )
    def decorated(
        value=take(0),
        *rest,
        key=take(0)
    ):
        take(here())

    decorated(1, 2, key=3)


@situation
def unpacked_arguments():
    def wide(*args, **kwargs):
        take(here())

    wide(*[1, 2, 3], **{"a": 1})
    wide(*(take(here()) for _ in range(2)))


@situation
def classes():
    class Meta(type):
        @classmethod
        def __prepare__(mcs, name, bases):
            take(here())
            return {}

        def __call__(cls, *args):
            take(here())
            return super().__call__(*args)

    class Described:
        def __set_name__(self, owner, name):
            take(here())

        def __get__(self, instance, owner=None):
            take(here())
            return 1

    class Body(metaclass=Meta):
        take(here())
        described = Described()

        class Inner:
            take(here())

        def __init__(self):
            take(here())

        def __init_subclass__(cls):
            take(here())

        def __class_getitem__(cls, item):
            take(here())

        @property
        def value(self):
            return take(here())

        @staticmethod
        def static():
            take(here())

        @classmethod
        def of_class(cls):
            take(here())

        def __getattr__(self, name):
            take(here())
            return None

    class Derived(Body):
        take(here())

    body = Derived()
    body.value, body.described, body.missing, Body[int]
    body.static()
    body.of_class()


@situation
def special_methods():
    class Special:
        def __init__(self, value=0):
            self.value = value

        def __eq__(self, other):
            take(here())
            return self.value == other.value

        def __hash__(self):
            take(here())
            return 1

        def __lt__(self, other):
            take(here())
            return self.value < other.value

        def __add__(self, other):
            take(here())
            return self

        def __radd__(self, other):
            take(here())
            return self

        def __bool__(self):
            take(here())
            return True

        def __len__(self):
            take(here())
            return 3

        def __iter__(self):
            take(here())
            return iter([1])

        def __contains__(self, item):
            take(here())
            return True

        def __getitem__(self, item):
            take(here())
            return 1

        def __setitem__(self, item, value):
            take(here())

        def __call__(self):
            take(here())

        def __repr__(self):
            take(here())
            return "special"

        def __format__(self, spec):
            take(here())
            return "special"

        def __index__(self):
            take(here())
            return 1

        def __enter__(self):
            take(here())

        def __exit__(self, *error):
            take(here())

    a, b = Special(1), Special(2)
    a == b, a < b, a + b, 1 + a, len(a), 1 in a, a[1], repr(a), "%s" % a, [1, 2][a]
    a[1] = 2
    a()
    {a: 1}.get(b)
    {a, b}
    f"{a} {b:>10} {take(here())}"
    sorted([b, a])
    max(a, b)
    [*a]
    if a:
        with b:
            take(here())
    for _ in a:
        take(here())


@situation
def finalisers():
    class Finalised:
        def __del__(self):
            take(here())

    class Cycle:
        def __init__(self):
            self.me = self

        def __del__(self):
            take(here())

    Finalised()
    gone = Finalised()
    del gone
    Cycle()
    gc.collect()
    kept = Finalised()
    weakref.ref(kept, lambda _: take(here()))
    reference = weakref.ref(kept, lambda _: take(here()))
    kept = None
    reference()


# ---- generators, coroutines, comprehensions ------------------------------------------------------


@situation
def generators():
    def simple():
        yield take(here())
        try:
            received = yield 1
            take(here())
            yield received
        finally:
            take(here())

    def delegating():
        take(here())
        yield from simple()

    def twice():
        yield from delegating()
        take(here())

    list(twice())
    for _ in simple():
        take(here())
    generator = twice()
    next(generator)
    next(generator)
    generator.send(5)
    generator.close()
    generator = simple()
    next(generator)
    next(generator)
    with contextlib.suppress(KeyError):
        generator.throw(KeyError())
    sum(take(here()) or 1 for _ in range(3))
    simple_iterator = map(lambda _: take(here()), simple())
    list(simple_iterator)


@situation
def coroutines():
    class Pause:
        def __await__(self):
            take(here())
            yield
            take(here())

    @contextlib.asynccontextmanager
    async def manager():
        take(here())
        yield
        take(here())

    async def numbers():
        for number in range(2):
            await Pause()
            take(here())
            yield number

    async def inner():
        await Pause()
        take(here())
        return 1

    async def outer():
        take(here())
        await inner()
        async for _ in numbers():
            take(here())
        [take(here()) async for _ in numbers()]
        [await inner() for _ in range(2)]
        async with manager():
            take(here())

    coroutine = outer()
    with contextlib.suppress(StopIteration):
        while True:
            coroutine.send(None)
    suspended = outer()
    suspended.send(None)
    suspended.close()


@only_once
def event_loop():
    async def worker(number):
        for _ in range(3):
            take(here())
            await asyncio.sleep(0)

    async def main():
        await asyncio.gather(*(worker(number) for number in range(3)))
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, lambda: take(here()))

    asyncio.run(main())


@situation
def comprehensions():
    [take(here()) for _ in range(2)]
    {take(here()) for _ in range(2)}
    {number: take(here()) for number in range(2)}
    [[take(here()) for _ in range(2)] for _ in range(2)]
    [number for number in range(3) if take(here()) or number]
    list(take(here()) for _ in range(2))

    class Body:
        values = [take(here()) for _ in range(2)]

    [
        take(0)
        for _ in range(2)
        if not
        take(0)
    ]
    any((lambda: take(here()))() for _ in range(2))


# ---- Python called by C --------------------------------------------------------------------------


@situation
def callbacks():
    sorted([3, 1, 2], key=lambda value: take(here()) or value)
    [3, 1, 2].sort(key=functools.cmp_to_key(lambda a, b: take(here()) or a - b))
    list(map(lambda value: take(here()), range(2)))
    list(filter(lambda value: take(here()), range(2)))
    functools.reduce(lambda a, b: take(here()) or b, range(3))
    min(range(3), key=lambda value: take(here()) or value)
    re.sub("[ab]", lambda match: take(here()) or "", "abc")
    functools.lru_cache()(lambda: take(here()))()
    eval("take(here())", names())
    eval(compile(ast.parse("take(here())", mode="eval"), "<tree>", "eval"), names())


@situation
def native_callbacks():
    plain_function = ctypes.CFUNCTYPE(None)

    def called():
        take(here())

    def called_again():
        take(here())
        function = plain_function(called)
        notes.free.probe_call(ctypes.cast(function, ctypes.c_void_p))
        take(here())

    function = plain_function(called_again)
    for library in notes.free, notes.held:
        library.probe_call(ctypes.cast(function, ctypes.c_void_p))


@situation
def quicksort():
    pointer = ctypes.POINTER(ctypes.c_int)
    compare_function = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer)

    def compare(a, b):
        take(here())
        return a[0] - b[0]

    values = (ctypes.c_int * 5)(5, 3, 1, 4, 2)
    ctypes.CDLL(None).qsort(values, 5, ctypes.sizeof(ctypes.c_int), compare_function(compare))


@situation
def signals():
    before = signal.signal(signal.SIGUSR1, lambda number, frame: take(here()))
    signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


@situation
def without_python():
    """A thread that Python knows nothing of has no Python frames."""
    notes.free.probe_take_outside(notes.add((), notes.next_size()))
    notes.held.probe_take_outside(notes.add((), notes.next_size()))


@situation
def imports():
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "imported_module.py"), "w") as module:
            module.write("from __main__ import take, here\n\n\ntake(here())\n")
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        import imported_module

        importlib.reload(imported_module)
        sys.path.remove(folder)
        del sys.modules["imported_module"]


# ---- exceptions and blocks -----------------------------------------------------------------------


@situation
def exceptions():
    def failing():
        try:
            raise KeyError(take(here()))
        finally:
            take(here())

    try:
        failing()
    except KeyError:
        take(here())
        try:
            1 / 0
        except ZeroDivisionError:
            take(here())
        else:
            take(here())
        finally:
            take(here())
    for _ in range(2):
        try:
            continue
        finally:
            take(here())
    try:
        assert False, take(here())
    except AssertionError as error:
        error.with_traceback(None)
        take(here())


@situation
def with_blocks():
    class Manager:
        def __enter__(self):
            take(here())
            return self

        def __exit__(self, *error):
            take(here())
            return True

    @contextlib.contextmanager
    def manager():
        take(here())
        try:
            yield
        finally:
            take(here())

    with Manager() as outer, manager():
        take(here())
        with Manager():
            raise KeyError
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: take(here()))
        stack.enter_context(Manager())


@situation
def newer_syntax():
    if VERSION >= (3, 10):
        run_source(
            "def matching(subject):\n"
            "    match subject:\n"
            "        case [1, x] if take(here()) is None:\n"
            "            take(here())\n"
            "        case _:\n"
            "            take(here())\n"
            "matching([1, 2])\nmatching(3)\n"
        )
    if VERSION >= (3, 11):
        run_source(
            "try:\n"
            "    raise ExceptionGroup('g', [KeyError(), ValueError()])\n"
            "except* KeyError:\n"
            "    take(here())\n"
            "except* ValueError:\n"
            "    take(here())\n"
        )
    if VERSION >= (3, 12):
        run_source(
            "type Lazy = [take(here())]\n"
            "Lazy.__value__\n"
            "def generic[T: (take(here()), int)](value: T): take(here())\n"
            "generic(1)\n"
            "generic.__type_params__[0].__constraints__\n"
        )
    if VERSION >= (3, 14):
        run_source(
            "def annotated(value: take(here())): pass\n"
            "annotated.__annotations__\n"
            "t'{take(here())}'\n"
        )
    if (value := take(here())) is None:
        take(here())


# ---- lines ---------------------------------------------------------------------------------------


@situation
def odd_layouts():
    def identity(*values):
        take(here())
        return values

    identity(
        take(0),
        [
            take(
                0
            ),
        ],
        identity(
            take(0)
        ),
    )
    take \
        (
            0
        )
    value = (take(0),
             take(0)) + (
        take(0), take(0)); take(0)
    (
        take
    )(
        0
    )
    value = [
        identity
        (
            take(0)
        )
        for _ in
        range(2)
    ]
    while (
        take(0) or
        take(0)
    ):
        break
    return identity(
        value,
        take(0)
    )


@situation
def long_functions():
    for lines in 3000, 70000:
        filler = "    x = 1\n"
        space = run_source(
            "def long(take, here):\n"
            + filler * 1500
            + "    take(here())\n"
            + "    for _ in range(2):\n"
            + "        take(here())\n"
            + filler * 1500
            + "    take(here())\n"
            + "\n" * lines
            + "    take(here())\n"
            + "    return take(\n" + "\n" * 3000 + "        0)\n",
            "<long %d>" % lines,
        )
        space["long"](take, here)


@situation
def lines_far_apart():
    """Differences of lines and of code around what one byte, one signed byte and more can hold."""
    source = "def apart(take, here):\n"
    for gap in (1, 2, 3, 63, 64, 65, 126, 127, 128, 129, 254, 255, 256, 257, 1000, 4096, 40000):
        source += "\n" * gap + "    take(here())\n"
        source += "    x = [%s]\n" % ", ".join("x%d" % (i % 3) for i in range(gap % 300))
        source += "    (lambda: take(here()))()\n"
        source += "    max(\n        0," + "\n" * gap + "        take(0) or 0, 1)\n"
    space = run_source(source.replace("(take, here)", "(take, here, x0=0, x1=1, x2=2)"), "<apart>")
    space["apart"](take, here)


@situation
def many_constants():
    source = "def many(take, here):\n"
    source += "".join("    v%d = %d\n" % (i, i + 1000) for i in range(700))
    source += "    take(here())\n    return v699, take(here())\n"
    run_source(source, "<many>")["many"](take, here)


@situation
def first_lines():
    run_source("\n" * 100000 + "take(here())\nf = lambda: take(here())\nf()\n", "<far>")
    run_source("take(here())", "<near>")
    tree = ast.parse("def moved():\n    take(here())\n    take(here())\n")
    for node, line in zip(tree.body[0].body, (500, 20)):
        for part in ast.walk(node):
            if hasattr(part, "lineno"):
                part.lineno, part.end_lineno = line, line
    space = names()
    exec(compile(tree, "<backwards>", "exec"), space)
    space["moved"]()


# ---- names ---------------------------------------------------------------------------------------

NAMES = (
    "plain",
    "caf\u00e9",
    "\u00ff" * 3,
    "\u51fd\u6570",
    "\u0416\u00e9\u51fd",
    "\U0001d4bb\U00020000",
    "mixed a\u00e9\u51fd\U0001f40d",
    "x" * 400,
    "\u00e9" * 400,
    "\u51fd" * 400,
    "\U0001f40d" * 400,
    "with space and \"quotes\" and \\ and \u00a0",
)
ESCAPED = ("caf\udce9.py", "\udcff\udcfe", "\u51fd\udce9", "\U0001f40d\udc80")


@situation
def file_names():
    for name in NAMES + ESCAPED:
        run_source("\ntake(here())\n(lambda: take(here()))()", "/a folder/" + name + ".py")


@situation
def function_names():
    for number, name in enumerate(NAMES + ESCAPED):

        def function():
            take(here())

        replaced = {"co_name": name}
        if VERSION >= (3, 11):
            replaced["co_qualname"] = "Outer.<locals>." + name
        renamed = types.FunctionType(function.__code__.replace(**replaced), globals())
        renamed()
    run_source(
        "def \u51fd\u6570():\n"
        "    class \u00c9:\n"
        "        def \u0416(self): take(here())\n"
        "    \u00c9().\u0416()\n"
        "\u51fd\u6570()"
    )


# ---- code that changes and goes ------------------------------------------------------------------


@situation
def warm_code():
    def hot(number, wanted):
        if number % 500 == wanted:
            take(here())
        return number

    class Hot:
        def method(self, number):
            if number % 500 == 7:
                take(here())

    instance = Hot()
    for number in range(10000):
        hot(number, 3)
        instance.method(number)
        if number % 1000 == 999:
            take(here())
    total = sum(hot(number, 499) for number in range(10000))
    return total


@situation
def without_frame_objects():
    """Notes make frame objects of the frames on the stack: here only the first time."""
    stack = []

    def size():
        if not stack:
            stack.extend(notes.stack_here()[1:])
        return notes.add(stack, notes.next_size())

    def inner():
        take(size())

    def outer():
        inner()

    for _ in range(50):
        outer()


@only_once
def code_that_goes():
    """Functions made and dropped: their addresses come back with other code."""
    for number in range(2000):
        name = "made_%d()" % (number % 50)
        source = "\n" * (number % 700) + "def " + name + ":\n    return take(here())\n" + name
        run_source(source, "<made %d>" % (number % 3))


@only_once
def same_code_but_the_line():
    """As above; alike in all but the table of lines: names, first line, instructions, sizes."""
    for number in range(2000):
        gap = 1 + number % 60
        run_source("def same():\n" + "\n" * gap + "    return take(here())\nsame()", "<same>")


@only_once
def same_long_code_but_the_line():
    """To 3.11 long tables are told apart by their first 64 bytes and their last 8 alone: code that
    goes and comes back alike but for a line in between keeps the old line."""
    if VERSION < (3, 12):
        return
    filler = "    x = 1\n" * 40
    for number in range(500):
        gap = "\n" * (1 + number % 60)
        run_source("def same():\n" + filler + gap + "    take(here())\n" + filler + "same()")


@only_once
def same_code_but_the_names():
    for number in range(1000):
        run_source("def made():\n    return take(here())\nmade()", "<file %d>" % (number % 70))
        name = "made_%d()" % (number % 70)
        run_source("def " + name + ":\n    take(here())\n" + name, "<one>")


# ---- observers -----------------------------------------------------------------------------------


def some_of_each():
    for function in (nested, generators, coroutines, comprehensions, callbacks, exceptions):
        function()
    odd_layouts()
    classes()


@situation
def traced():
    def tracer(frame, event, argument):
        return tracer

    sys.settrace(tracer)
    try:
        some_of_each()
        without_frame_objects()
    finally:
        sys.settrace(None)
    sys.setprofile(lambda *arguments: None)
    try:
        some_of_each()
        without_frame_objects()
    finally:
        sys.setprofile(None)


@situation
def traced_midway():
    """Tracing that begins and ends inside a function, and moves the line of a frame."""

    def jump(frame, event, argument):
        if event == "line" and "skipped" in frame.f_locals and not frame.f_locals["skipped"]:
            with contextlib.suppress(ValueError):
                frame.f_lineno += 1
        return jump

    def jumping():
        take(here())
        skipped = False
        skipped = True
        take(here())
        return skipped

    def begins():
        take(here())
        sys.settrace(jump)
        sys._getframe().f_trace = jump
        take(here())
        jumping()
        sys.settrace(None)
        take(here())

    begins()
    take(here())


@situation
def monitored():
    monitoring = getattr(sys, "monitoring", None)
    if not monitoring:
        return
    events = monitoring.events
    monitoring.use_tool_id(3, "situations")
    observed = 0
    for event in (events.LINE, events.PY_START, events.CALL, events.BRANCH, events.INSTRUCTION):
        monitoring.register_callback(3, event, lambda *arguments: None)
        observed |= event
    monitoring.set_events(3, observed)
    try:
        some_of_each()
    finally:
        monitoring.set_events(3, 0)
        monitoring.free_tool_id(3)
    some_of_each()


# ---- threads -------------------------------------------------------------------------------------


def in_threads(functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextlib.contextmanager
def in_background(function):
    stop = threading.Event()

    def loop():
        while not stop.is_set():
            function()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@situation
def threads():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    in_threads([some_of_each, some_of_each, some_of_each, lambda: (take(here()), some_of_each())])
    sys.setswitchinterval(interval)


@situation
def collected():
    with in_background(gc.collect):
        some_of_each()


@situation
def watched():
    def look():
        for frame in sys._current_frames().values():
            while frame:
                frame.f_lineno
                frame = frame.f_back

    with in_background(look):
        some_of_each()


# ---- processes, interpreters, stacks of their own ------------------------------------------------


def in_child(function):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            notes.forget()
            function()
            notes.save(folder)
            status = 0
        finally:
            os._exit(status)
    status = os.waitpid(pid, 0)[1]
    if status:
        sys.exit("a forked child ended with status %d" % status)


@only_once
def forked():
    in_child(some_of_each)

    def from_thread():
        in_child(some_of_each)

    in_threads([from_thread])
    in_child(lambda: in_threads([some_of_each, plain]))


@only_once
def second_interpreter():
    """Seen are the frames of the thread's state that the interpreter itself would name: to 3.11
    that of the calling interpreter, later the inner one."""
    size = notes.next_size()
    code = "import ctypes\ntake = ctypes.CDLL(%r).probe_take\ntake(%d)\n" % (notes.PATH, size)
    outer, inner_known = notes.stack_here(), notes.held.probe_inside(code.encode())
    if inner_known < 0:
        sys.exit("the second interpreter failed")
    qualified = "<module>" if VERSION >= (3, 11) else None
    notes.add([("<string>", 3, "<module>", qualified)] if inner_known else outer, size)
    take(here())


@only_once
def greenlets():
    try:
        from greenlet import greenlet
    except ImportError:
        print("absent: greenlet")
        return

    def first():
        take(here())
        second_one.switch()
        take(here())

    def second():
        take(here())
        nested()
        first_one.switch()

    first_one, second_one = greenlet(first), greenlet(second)
    first_one.switch()
    take(here())


def main():
    global take, folder
    folder, chosen = sys.argv[1], sys.argv[2:]
    sys.setrecursionlimit(2000)
    for library in notes.free, notes.held:
        take = library.probe_take
        for notes.direct in True, False:
            for function in situations:
                if not chosen or function.__name__ in chosen:
                    function()
    for notes.direct in True, False:
        for function in once:
            if not chosen or function.__name__ in chosen:
                function()
    notes.save(folder)


main()
