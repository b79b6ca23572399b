"""Trains a language model: train.py REQUEST SOCKET.

REQUEST is a JSON file. The script writes its progress to the Unix socket, one
JSON object per line: {type: step, row}, {type: checkpoint, step, dir}, {type:
score, rows, numbers, step, epoch, evaluation}, and last {type: result, result} or
{type: fault, code, message}. The reply to a checkpoint is {}, and the reply to a score is {scores}. On SIGTERM the
script saves a checkpoint after the current step and exits. If torchrun starts
several processes, on one node or on several, they share the rows of each step;
rank 0 uses the socket and reads the rows.

Random numbers depend only on the request's seed and on the step, so a training run
that resumes from a checkpoint gives the same numbers as an uninterrupted one.
"""

import json
import os
import queue
import signal
import socket
import sys
import threading

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from preference import Preference
from reinforcement import Reinforcement
from rows import TrainingError
from training import RANK, WORLD, Training


class Parent:
    """The connection to the parent process. The script exits when the parent closes it."""

    def __init__(self, path):
        self.conn = socket.socket(socket.AF_UNIX)
        self.conn.connect(path)
        self.replies = queue.Queue()
        threading.Thread(target=self._read_replies, daemon=True).start()

    def _read_replies(self):
        for line in self.conn.makefile("r", encoding="utf-8"):
            self.replies.put(json.loads(line))
        os._exit(70)

    def send(self, **message):
        self.conn.sendall((json.dumps(message, ensure_ascii=False) + "\n").encode())

    def request(self, **message):
        self.send(**message)
        return self.replies.get()


METHODS = {"supervised": Training, "dpo": Preference, "reinforcement": Reinforcement}


@record  # torchrun prints the recorded error
def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        request = json.load(f)
    parent = Parent(sys.argv[2]) if RANK == 0 else None
    for name in ("dataFiles", "evalFiles"):
        request[name] = request[name] or []
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    elif request["parallelism"]:
        torch.set_num_threads(request["parallelism"])
    if WORLD > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        if request["method"] not in METHODS:
            raise TrainingError(f"method: the trainer does not support {request['method']!r}: "
                                f"use one of {', '.join(METHODS)}")
        training = METHODS[request["method"]](request, parent, device, stop)
        if request["resumeDir"]:
            training.resume(request["resumeDir"])
        else:
            training.prepare()
        result = training.run()
        if parent and result:
            parent.send(type="result", result=result)
    except TrainingError as error:
        if parent:
            parent.send(type="fault", code=error.code, message=str(error))
        sys.exit(1)
    if WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
