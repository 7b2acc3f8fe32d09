"""Allocates under stress for a while: stress.py FOLDER SECONDS SEED

Threads allocate from nested calls, generators, exceptions, callbacks, comprehensions and code made
by exec, in an order by the seed, while others collect garbage, look at all threads' frames and
switch tracing on and off. Notes go to FOLDER as from situations.py. CPython 3.8 and later.
"""

import contextlib
import gc
import random
import sys
import threading

import notes
from notes import here

WORKERS = 3

take = notes.free.probe_take
end = threading.Event()


class Failure(Exception):
    pass


class Finalised:
    def __init__(self):
        self.cycle = self

    def __del__(self):
        take(here())


def nested(choice, levels):
    if levels:
        return nested(choice, levels - 1)
    take(here())
    return act(choice) if choice.random() < 0.2 else None


def generated(choice):
    def numbers(count):
        for number in range(count):
            take(here())
            yield number

    def delegating(count):
        yield from numbers(count)
        take(here())

    for _ in delegating(choice.randrange(1, 4)):
        if choice.random() < 0.3:
            break
        take(here())


def awaited(choice):
    class Pause:
        def __await__(self):
            take(here())
            yield

    async def inner():
        await Pause()
        take(here())

    async def outer():
        await inner()
        take(here())

    coroutine = outer()
    with contextlib.suppress(StopIteration):
        while True:
            coroutine.send(None)


def raised(choice):
    def fails(levels):
        try:
            if levels:
                fails(levels - 1)
            take(here())
            raise Failure(take(here()))
        finally:
            take(here())

    try:
        fails(choice.randrange(5))
    except Failure:
        take(here())


def called_back(choice):
    sorted(range(choice.randrange(1, 4)), key=lambda value: take(here()) or value)
    list(map(lambda value: take(here()), range(2)))


def comprehended(choice):
    [[take(here()) for _ in range(2)] for _ in range(choice.randrange(1, 3))]
    {take(here()) for _ in range(2)}


def made(choice):
    """The same names and lines again and again, at addresses that other code had before."""
    lines, name, file = choice.randrange(30), choice.randrange(5), choice.randrange(5)
    source = "def made_%d():\n%s    take(here())\nmade_%d()\n" % (name, "\n" * lines, name)
    exec(compile(source, "<made %d>" % file, "exec"), {"take": take, "here": here})


def dropped(choice):
    Finalised()


def loop(choice):
    for number in range(2000):
        if number % 400 == 0:
            take(here())


ACTIONS = (generated, awaited, raised, called_back, comprehended, made, made, dropped, loop)


def act(choice):
    return choice.choice(ACTIONS)(choice)


def work(seed):
    choice = random.Random(seed)
    while not end.is_set():
        nested(choice, choice.randrange(12))
        act(choice)
        # Not more than the trace can hold, however fast the machine is.
        if notes.count() > 400000:
            end.set()


def collect():
    while not end.is_set():
        gc.collect()
        end.wait(0.002)


def look():
    while not end.is_set():
        for frame in list(sys._current_frames().values()):
            while frame:
                frame.f_lineno, frame.f_locals
                frame = frame.f_back
        end.wait(0.001)


def trace_on_and_off():
    while not end.is_set():
        for install in sys.settrace, sys.setprofile:
            install(lambda *arguments: None)
            act(random)
            install(None)


def main():
    sys.setswitchinterval(1e-4)
    background = [collect, look, trace_on_and_off]
    seed = int(sys.argv[3])
    threads = [threading.Thread(target=function) for function in background]
    threads += [threading.Thread(target=work, args=(seed + number,)) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    end.wait(float(sys.argv[2]))
    end.set()
    for thread in threads:
        thread.join()
    gc.collect()
    notes.save(sys.argv[1])


main()
