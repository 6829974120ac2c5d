"""Python's ways to hand work to processes, timed for benches/table: one job, a task of 200 bytes in, an event and a
result out, worker gone.

    peer.py forkserver | spawn | queue | loky | ray

Says "ready", then answers each line of its input (start, batch N, events N) with "ok" and nanoseconds. What cannot be
had here is said in one line beginning with "missing". The workers import what an agent needs for HTTP (httpx, openai);
the forkserver has it preloaded.
"""

import os
import sys
import time

EVENT = {"child": 0, "name": "read_file", "preview": "x" * 120, "args": {"path": "src/run/batch.rs", "offset": "1"}}


def heavy():
    import httpx  # noqa: F401
    import openai  # noqa: F401


def work(task, events, results):
    heavy()
    events.put(dict(EVENT, child=task["index"]))
    results.put({"done": task["index"]})


def work_and_return(task):
    heavy()
    return dict(EVENT, child=task["index"]), {"done": task["index"]}


def emit(count, queue):
    for _ in range(count + 1):
        queue.put(EVENT)


def task(index):
    return {"index": index, "goal": "g" * 200}


def processes(context):
    """Processes of multiprocessing, with two queues."""

    def batch(count):
        events, results = context.Queue(), context.Queue()
        began = time.monotonic_ns()
        # detached-spawn: ok — a peer is measured by what it starts
        children = [context.Process(target=work, args=(task(index), events, results)) for index in range(count)]
        for child in children:
            child.start()
        events.get()
        first = time.monotonic_ns() - began
        for _ in range(count - 1):
            events.get()
        for _ in range(count):
            results.get()
        for child in children:
            child.join()
        return first, time.monotonic_ns() - began

    return batch


def queue_events(context):
    """One process's events over a multiprocessing.Queue, from the first to the last."""

    def events(count):
        queue = context.Queue()
        # detached-spawn: ok — a peer is measured by what it starts
        child = context.Process(target=emit, args=(count, queue))
        child.start()
        queue.get()
        began = time.monotonic_ns()
        for _ in range(count):
            queue.get()
        took = time.monotonic_ns() - began
        child.join()
        return (took,)

    return events


def loky():
    # detached-spawn: ok — a peer is measured by what it starts
    from loky import ProcessPoolExecutor as Executor

    def batch(count):
        began = time.monotonic_ns()
        executor = Executor(max_workers=count)
        jobs = [executor.submit(work_and_return, task(index)) for index in range(count)]
        jobs[0].result()
        first = time.monotonic_ns() - began
        for job in jobs:
            job.result()
        executor.shutdown()
        return first, time.monotonic_ns() - began

    return batch


def ray():
    import shutil
    import tempfile

    import ray

    # Short, since it holds names of sockets.
    place = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error", _temp_dir=place)

    @ray.remote(num_cpus=0)
    class Actor:
        def work(self, task):
            return work_and_return(task)

    def batch(count):
        began = time.monotonic_ns()
        actors = [Actor.remote() for _ in range(count)]
        jobs = [actor.work.remote(task(index)) for index, actor in enumerate(actors)]
        ray.get(jobs[0])
        first = time.monotonic_ns() - began
        ray.get(jobs)
        for actor in actors:
            ray.kill(actor)
        return first, time.monotonic_ns() - began

    def end():
        ray.shutdown()
        shutil.rmtree(place, ignore_errors=True)

    return {"batch": batch, "end": end}


def rounds(kind):
    # detached-spawn: ok — a peer is measured by what it starts
    from multiprocessing import get_context

    here = os.path.dirname(os.path.abspath(__file__))
    if kind in ("forkserver", "spawn", "loky", "ray"):
        heavy()
    if kind == "forkserver":
        context = get_context("forkserver")
        sys.path.insert(0, here)
        context.set_forkserver_preload(["httpx", "openai", "peer"])
        return {"batch": processes(context)}
    if kind == "spawn":
        return {"batch": processes(get_context("spawn"))}
    if kind == "queue":
        return {"events": queue_events(get_context("fork"))}
    if kind == "loky":
        return {"batch": loky()}
    if kind == "ray":
        return ray()
    raise SystemExit(f"peer.py: no way {kind}")


def main():
    kind = sys.argv[1] if len(sys.argv) == 2 else ""
    # What a library prints on its own must not stand between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        known = rounds(kind)
    except ImportError as error:
        answers.write(f"missing {error}: pip install httpx openai loky ray\n")
        return
    answers.write("ready\n")
    for line in sys.stdin:
        what, count = (line.split() + ["1"])[:2]
        step = known.get("batch" if what == "start" else what)
        try:
            if step is None:
                raise ValueError(f"no such round: {line.strip()}")
            answers.write("ok " + " ".join(map(str, step(int(count)))) + "\n")
        except Exception as error:
            answers.write(f"failed {type(error).__name__}: {error}\n".replace("\n", " ") + "\n")
    if "end" in known:
        known["end"]()


if __name__ == "__main__":
    main()
