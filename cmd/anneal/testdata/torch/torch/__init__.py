"""Replaces PyTorch in TestLogOfATorchJob: the training script prints lines and reports steps, but does not train.

A file "prints" beside this one has further lines to print. Without a file "finish", the script
never ends by itself.
"""

import json
import os
import shutil
import socket
import sys
import time

STEPS = 3


class cuda:
    @staticmethod
    def device_count():
        return 0


def beside(name):
    return os.path.join(os.path.dirname(__file__), name)


def train(request_file, socket_path):
    with open(request_file, encoding="utf-8") as f:
        request = json.load(f)
    conn = socket.socket(socket.AF_UNIX)
    conn.connect(socket_path)

    def send(**message):
        conn.sendall((json.dumps(message) + "\n").encode())

    print("loading the model for", request["workDir"], flush=True)
    with open(beside("prints"), encoding="utf-8") as f:
        print(f.read(), file=sys.stderr, flush=True)
    for step in range(1, STEPS + 1):
        send(type="step", row={"step": step, "steps": STEPS, "epoch": step / STEPS, "learning_rate": 0.1,
                               "tokens": step, "time": "2026-01-02T03:04:05+00:00",
                               "values": {"reward/mean": 0.5}})
    while not os.path.exists(beside("finish")):
        time.sleep(0.05)
    result = os.path.join(request["workDir"], "result")
    shutil.copytree(request["baseDir"], result)
    send(type="result", result={"dir": result, "steps": STEPS, "tokens": STEPS, "values": {"reward/mean": 0.5}})


if os.path.basename(sys.argv[0]) == "train.py":
    train(sys.argv[1], sys.argv[2])
    sys.exit(0)
