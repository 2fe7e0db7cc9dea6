"""Functions that run in the processes of tests/test_two_processes.py."""

import os
import signal
import time


def names_itself():
    return f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}"


def one_fails():
    if os.environ["RANK"] == "1":
        raise ValueError("rank 1 has no luck")
    time.sleep(600)


def one_fails_and_is_missed():
    import torch  # here, for the others start sooner without it
    from torch import distributed

    distributed.init_process_group("gloo")
    if os.environ["RANK"] == "1":
        raise ValueError("rank 1 has no luck")
    distributed.all_reduce(torch.ones(1))


def one_is_killed():
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def sleeps_soundly():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(600)
