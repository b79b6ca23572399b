"""Trains a language model as its parent orders it: train.py ORDER SOCKET.

ORDER is a JSON file. Over the Unix socket the script tells how it goes, one
JSON object a line: {type: step, row}, {type: checkpoint, step, dir}, {type:
score, rows}, and last {type: result, result} or {type: fault, code, message}.
A checkpoint is answered by {}, a score by {scores}. On SIGTERM it saves a
checkpoint after the step that it is at, and ends. Several copies that torchrun
starts share each step; the first of them talks.

Whatever is random follows from the order's seed and the step, so that a
training that goes on from a checkpoint takes the numbers of one that was never
interrupted.
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

from preference import Preference
from reinforcement import Reinforcement
from rows import Fault
from training import RANK, WORLD, Training


class Parent:
    """The program that started this one. Without it there is nothing to do."""

    def __init__(self, path):
        self.conn = socket.socket(socket.AF_UNIX)
        self.conn.connect(path)
        self.replies = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.conn.makefile("r", encoding="utf-8"):
            self.replies.put(json.loads(line))
        os._exit(70)

    def tell(self, **message):
        self.conn.sendall((json.dumps(message, ensure_ascii=False) + "\n").encode())

    def ask(self, **message):
        self.tell(**message)
        return self.replies.get()


METHODS = {"supervised": Training, "dpo": Preference, "reinforcement": Reinforcement}


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        order = json.load(f)
    parent = Parent(sys.argv[2]) if RANK == 0 else None
    for name in ("dataFiles", "evalFiles"):
        order[name] = order[name] or []
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    elif order["parallelism"]:
        torch.set_num_threads(order["parallelism"])
    if WORLD > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        if order["method"] not in METHODS:
            raise Fault(f"method: {order['method']!r} is unknown to this trainer; use one of {', '.join(METHODS)}")
        training = METHODS[order["method"]](order, parent, device, stop)
        if order["resumeDir"]:
            training.resume(order["resumeDir"])
        else:
            training.prepare()
        result = training.run()
        if parent and result:
            parent.tell(type="result", result=result)
    except Fault as fault:
        if parent:
            parent.tell(type="fault", code=fault.code, message=str(fault))
        sys.exit(1)
    if WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
