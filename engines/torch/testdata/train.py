"""Fakes the training script: it uses the same protocol, but does not train.

The text of the first row selects its behavior: "train", "fault", "crash", "hang",
"garbage", "outside", "score", "stop", "peek FILE" or "link FILE".
"""

import json
import os
import signal
import socket
import sys
import time

with open(sys.argv[1], encoding="utf-8") as f:
    config = json.load(f)
with open(config["dataFiles"][0], encoding="utf-8") as f:
    behavior = json.loads(f.readline())["text"]
if behavior == "crash":
    sys.exit("RuntimeError: CUDA out of memory")

conn = socket.socket(socket.AF_UNIX)
conn.connect(sys.argv[2])
replies = conn.makefile("r", encoding="utf-8")
stopped = []  # not an Event: a signal handler that sets one while this thread enters wait would deadlock
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))


def send(**message):
    conn.sendall((json.dumps(message) + "\n").encode())


def request(**message):
    send(**message)
    line = replies.readline()
    if not line:
        sys.exit(70)
    return json.loads(line)


def output_dir(name):
    path = os.path.join(config["workDir"], name)
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, "step.json"), "w", encoding="utf-8") as f:
        json.dump(step, f)
    return path


def row():
    return {"step": step, "steps": 6, "epoch": step / 6, "learning_rate": 0.1, "tokens": 10 * step,
            "time": "2026-01-02T03:04:05+00:00", "values": {"train/loss": 1 / (config["seed"] + step)}}


step = 0
if config["resumeDir"]:
    with open(os.path.join(config["resumeDir"], "step.json"), encoding="utf-8") as f:
        step = json.load(f)
if behavior == "fault":
    send(type="fault", code="INVALID_ARGUMENT", message="rows.jsonl line 1: is not a row")
    sys.exit(1)
if behavior.startswith("peek "):
    try:
        content = open(behavior.removeprefix("peek ")).read()
    except OSError as e:
        content = str(e)
    send(type="fault", message=f"read: {content} as {os.getuid()}")
    sys.exit(1)
if behavior.startswith("link "):
    os.symlink(behavior.removeprefix("link "), os.path.join(output_dir("result"), "model"))
    send(type="result", result={"dir": output_dir("result")})
if behavior == "garbage":
    conn.sendall(b"Traceback\n")
    time.sleep(60)
if behavior == "outside":
    request(type="checkpoint", step=1, dir="/tmp")
if behavior == "score":
    rows = [{"messages": [], "ground_truth": "a"},
            {"messages": [{"role": "assistant", "content": "no"}], "ground_truth": "b"}]
    scores = request(type="score", rows=rows, numbers=[7, 7], step=1, epoch=0.5, evaluation=False)["scores"]
    reward = sum(s["value"] for s in scores if s["valid"])
    send(type="step", row={**row(), "step": 1, "values": {"reward/mean": reward}})
while step < 6:
    step += 1
    send(type="step", row=row())
    if behavior == "hang" and step == 2:
        while not stopped:
            time.sleep(0.01)
    if stopped or step % 3 == 0:
        request(type="checkpoint", step=step, dir=output_dir(f"checkpoint-{step}"))
    if stopped:
        sys.exit(0)
send(type="result", result={
    "dir": output_dir("result"), "adapter": config["settings"]["loraRank"] > 0, "steps": step, "tokens": 10 * step,
    "stoppedEarly": behavior == "stop", "reason": "it was enough" if behavior == "stop" else "",
    "values": row()["values"]})
