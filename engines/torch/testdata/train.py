"""Stands in for the trainer's script: it speaks as that does, and learns nothing.

The text of the first row says what it does: "train", "fault", "crash", "hang",
"garbage", "outside", "score" or "stop".
"""

import json
import os
import signal
import socket
import sys
import time

with open(sys.argv[1], encoding="utf-8") as f:
    order = json.load(f)
with open(order["dataFiles"][0], encoding="utf-8") as f:
    behaviour = json.loads(f.readline())["text"]
if behaviour == "crash":
    sys.exit("RuntimeError: CUDA out of memory")

conn = socket.socket(socket.AF_UNIX)
conn.connect(sys.argv[2])
answers = conn.makefile("r", encoding="utf-8")
stopped = []  # no Event: a handler that sets it while this thread begins to wait for it would wait for ever
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))


def tell(**message):
    conn.sendall((json.dumps(message) + "\n").encode())


def ask(**message):
    tell(**message)
    line = answers.readline()
    if not line:
        sys.exit(70)
    return json.loads(line)


def folder(name):
    path = os.path.join(order["workDir"], name)
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, "step.json"), "w", encoding="utf-8") as f:
        json.dump(step, f)
    return path


def row():
    return {"step": step, "steps": 6, "epoch": step / 6, "learning_rate": 0.1, "tokens": 10 * step,
            "time": "2026-01-02T03:04:05+00:00", "values": {"train/loss": 1 / (order["seed"] + step)}}


step = 0
if order["resumeDir"]:
    with open(os.path.join(order["resumeDir"], "step.json"), encoding="utf-8") as f:
        step = json.load(f)
if behaviour == "fault":
    tell(type="fault", code="INVALID_ARGUMENT", message="rows.jsonl line 1: is not a row")
    sys.exit(1)
if behaviour.startswith("peek "):
    try:
        seen = open(behaviour.removeprefix("peek ")).read()
    except OSError as e:
        seen = str(e)
    tell(type="fault", message=f"saw: {seen} as {os.getuid()}")
    sys.exit(1)
if behaviour.startswith("link "):
    os.symlink(behaviour.removeprefix("link "), os.path.join(folder("result"), "model"))
    tell(type="result", result={"dir": folder("result")})
if behaviour == "garbage":
    conn.sendall(b"Traceback\n")
    time.sleep(60)
if behaviour == "outside":
    ask(type="checkpoint", step=1, dir="/tmp")
if behaviour == "score":
    scores = ask(type="score", rows=[{"messages": [], "ground_truth": "a"}, {"messages": [], "ground_truth": "b"}])["scores"]
    tell(type="step", row={**row(), "step": 1, "values": {"reward/mean": sum(s["value"] for s in scores if s["valid"])}})
while step < 6:
    step += 1
    tell(type="step", row=row())
    if behaviour == "hang" and step == 2:
        while not stopped:
            time.sleep(0.01)
    if stopped or step % 3 == 0:
        ask(type="checkpoint", step=step, dir=folder(f"checkpoint-{step}"))
    if stopped:
        sys.exit(0)
tell(type="result", result={"dir": folder("result"), "adapter": order["settings"]["loraRank"] > 0, "steps": step, "tokens": 10 * step,
                            "stoppedEarly": behaviour == "stop", "reason": "it was enough" if behaviour == "stop" else "", "values": row()["values"]})
