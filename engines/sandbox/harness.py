"""Runs an evaluator's code in a process of its own.

Orders come and answers go as lines of JSON over a socket, so that what the code
prints is never an answer. The first order says what to run; build ones check
the code, others score one row each.
"""

import asyncio, contextlib, ctypes, importlib.metadata, importlib.util, inspect, io, json, math, os, re, resource, socket, sys, traceback, types

SELF = "<string>"  # the file name of this program in a traceback


# What the code prints.

class Bounded(io.RawIOBase):
    """Keeps the first bytes that are written, up to a limit."""

    def __init__(self, limit):
        self.limit, self.kept, self.cut = limit, bytearray(), False

    def writable(self):
        return True

    def write(self, data):
        data = bytes(data)
        room = self.limit - len(self.kept)
        self.kept += data[:max(room, 0)]
        self.cut = self.cut or len(data) > room
        return len(data)


class Printed:
    """Stands in for standard output and error until it is told apart."""

    def __init__(self, limit):
        self.limit = limit
        self.clear()

    def clear(self):
        self.raw = [Bounded(self.limit), Bounded(self.limit)]
        sys.stdout, sys.stderr = (io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True) for raw in self.raw)

    def hold(self):
        """Takes the place of standard output and error again, should the code have replaced or closed them."""
        for stream, raw in zip((sys.stdout, sys.stderr), self.raw):
            if raw.closed or getattr(stream, "buffer", None) is not raw:
                return self.clear()

    def take(self):
        if not any(raw.kept for raw in self.raw):
            return {}
        texts = [raw.kept.decode("utf-8", "replace") + ("\n[cut]" if raw.cut else "") for raw in self.raw]
        self.clear()
        return {"stdout": texts[0], "stderr": texts[1]}


# What the code may import although nobody installed it.

class Message(dict):
    """A message whose fields are attributes too."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)

    def model_dump(self, **_):
        return dict(self)


class Record:
    """An object with the fields it was made with."""

    def __init__(self, score=None, reason=None, is_score_valid=True, metrics=None, **more):
        self.score, self.reason, self.is_score_valid, self.metrics = score, reason, is_score_valid, metrics
        self.__dict__.update(more)


class EvaluateResult(Record):
    pass


class MetricResult(Record):
    pass


def reward_function(function=None, **_):
    """Hands messages over as objects, as reward kits do."""
    if function is None:
        return reward_function

    def typed(*args, **row):
        if isinstance(row.get("messages"), list):
            row["messages"] = [Message(m) if isinstance(m, dict) else m for m in row["messages"]]
        return function(*args, **row)

    typed.__name__, typed.__wrapped__ = function.__name__, function
    return typed


KITS = ("reward_kit", "reward_kit.models", "reward_kit.typed_interface", "eval_protocol", "eval_protocol.models", "eval_protocol.typed_interface")


def offer_kits():
    for name in KITS:
        root = name.split(".")[0]
        if root not in sys.modules and importlib.util.find_spec(root):
            continue  # the real one is installed
        kit = types.ModuleType(name)
        kit.__path__ = []
        kit.reward_function, kit.Message, kit.EvaluateResult, kit.MetricResult = reward_function, Message, EvaluateResult, MetricResult
        sys.modules[name] = kit
        if "." in name:
            setattr(sys.modules[root], name.split(".")[1], kit)


# Finding the code.

class Refused(Exception):
    """The code cannot be used: the user's to mend."""


def load(folder, file, function):
    path = os.path.join(folder, file)
    here = os.path.dirname(path)
    sys.path[:0] = [folder] if here == folder else [here, folder]
    name = os.path.splitext(os.path.basename(file))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or not os.path.isfile(path):
        raise Refused(f"{file}: there is no such file of Python among the code: name the entry file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as e:
        shown = told(e)
        print(shown, file=sys.stderr)
        raise Refused(f"{file}: cannot be imported: {brief(e)}") from None
    found = getattr(module, function, None)
    if not callable(found):
        raise Refused(f"{file}: there is no function {function}: define `def {function}(messages, ground_truth=None, **kwargs)`, or name another")
    return caller(found, f"{file}::{function}")


def caller(function, where):
    """A function of a row, which calls by keyword with the names that the function accepts."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise Refused(f"{where}: its parameters cannot be told: define it with def") from None
    if any(p.kind is p.POSITIONAL_ONLY for p in parameters):
        raise Refused(f"{where}: is called by keyword, and has parameters that have no name to the caller: remove the / among them")
    everything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}

    def call(row):
        result = function(**(row if everything else {k: v for k, v in row.items() if k in names}))
        return asyncio.run(wait(result)) if inspect.isawaitable(result) else result

    return call


async def wait(result):
    return await result


def criteria(folder, parts):
    """One evaluator of several: the mean of their scores, and each as a metric."""
    loaded = []
    for name, file, function in parts:
        before = set(sys.modules)
        loaded.append((name, load(folder, file, function)))
        for module in set(sys.modules) - before:  # another criterion may have modules of the same names
            if os.path.dirname(os.path.join(folder, file)) in str(getattr(sys.modules[module], "__file__", "")):
                del sys.modules[module]

    def evaluate(row):
        scores, metrics, reasons = [], {}, []
        for name, call in loaded:
            one = judged(call(row))
            if not one["valid"]:
                return {"score": 0, "is_score_valid": False, "reason": f"{name}: {one['reason']}"}
            scores.append(one["score"])
            metrics[name] = one["score"]
            metrics.update({f"{name}/{k}": v for k, v in one["metrics"].items()})
            if one["reason"]:
                reasons.append(f"{name}: {one['reason']}")
        return {"score": sum(scores) / len(scores), "reason": "; ".join(reasons), "metrics": metrics}

    return evaluate


# Telling what the code did.

def clip(text, limit=2000):
    text = str(text)
    return text if len(text) <= limit else text[:limit] + "…"


def brief(e):
    """An exception in one line, with the place in the code."""
    places = [f for f in traceback.extract_tb(e.__traceback__) if f.filename != SELF and not f.filename.startswith("<frozen")]
    where = f" ({os.path.basename(places[-1].filename)}:{places[-1].lineno})" if places else ""
    if isinstance(e, SyntaxError) and e.filename:
        where = f" ({os.path.basename(e.filename)}:{e.lineno})"
        return clip(f"SyntaxError: {e.msg}{where}")
    if isinstance(e, SystemExit):
        return clip(f"the code called sys.exit{where}: return a score instead")
    return clip(f"{type(e).__name__}: {e}{where}")


def told(e):
    frames = [f for f in traceback.extract_tb(e.__traceback__) if f.filename != SELF and not f.filename.startswith("<frozen")]
    return "".join(traceback.format_list(frames) + traceback.format_exception_only(type(e), e)).rstrip()


def field(result, name, default=None):
    return result.get(name, default) if isinstance(result, dict) else getattr(result, name, default)


def number(value):
    """A finite number, or None."""
    if isinstance(value, (str, bytes, type(None))):
        return None
    try:
        value = float(value)
    except Exception:
        return None
    return value if math.isfinite(value) else None


def invalid(reason):
    return {"score": 0, "valid": False, "reason": clip(reason), "metrics": {}}


def judged(result):
    """What a function answered, as a score."""
    value, reason, measured = result, "", {}
    if isinstance(result, dict) or hasattr(result, "score"):
        value, reason, measured = field(result, "score"), field(result, "reason") or field(result, "error") or "", field(result, "metrics") or {}
        if not field(result, "is_score_valid", True):
            return invalid(reason or "the code says that its score is not valid")
    score = number(value)
    if score is None:
        return invalid(f"the score {clip(repr(value), 200)} is not a number: answer one from 0 to 1, or an object with a score")
    if not 0 <= score <= 1:
        return invalid(f"the score {score:g} is not from 0 to 1")
    metrics = {}
    if isinstance(measured, dict):
        for name, one in list(measured.items())[:64]:
            figure = number(one if not (isinstance(one, dict) or hasattr(one, "score")) else field(one, "score"))
            if figure is not None:
                metrics[clip(name, 128)] = figure
    return {"score": score, "valid": True, "reason": clip(reason), "metrics": metrics}


def attempt(call, row):
    try:
        return judged(call(row))
    except BaseException as e:
        print(told(e), file=sys.stderr)
        return invalid(brief(e))


# Building.

INSTALLED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*([^;#]*)")
SMOKE = {"messages": [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "4"}], "ground_truth": "4", "tools": None}


def version(text):
    return [int(n) for n in re.findall(r"\d+", text)[:4]] + [0] * (4 - len(re.findall(r"\d+", text)[:4]))


def satisfies(have, asked):
    tests = {"==": lambda a, b: a == b, ">=": lambda a, b: a >= b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, "<": lambda a, b: a < b, "!=": lambda a, b: a != b}
    for part in filter(None, (p.strip() for p in asked.split(","))):
        sign, wanted = re.match(r"(~=|===?|!=|>=|<=|>|<)?\s*(.*)", part).groups()
        if sign == "~=":
            depth = len(re.findall(r"\d+", wanted)) - 1
            if version(have) < version(wanted) or version(have)[:depth] != version(wanted)[:depth]:
                return False
        elif wanted.endswith(".*"):
            depth = len(re.findall(r"\d+", wanted))
            if (version(have)[:depth] == version(wanted)[:depth]) != (sign != "!="):
                return False
        elif sign and not tests[sign[:2]](version(have), version(wanted)):
            return False
    return True


def missing(requirements):
    """The requirements that are not met here, and what is there of each other."""
    lacking, met = [], []
    for line in requirements.splitlines():
        line = line.split("#")[0].strip()
        found = INSTALLED.match(line)
        if not line:
            continue
        if not found or line.startswith("-"):
            lacking.append(line)
            continue
        name, asked = found.groups()
        try:
            have = importlib.metadata.version(name)
            (met if satisfies(have, asked) else lacking).append(f"{name} {have}" if satisfies(have, asked) else f"{line} (there is {have})")
        except importlib.metadata.PackageNotFoundError:
            module = name.replace("-", "_")
            try:
                there = module in sys.modules or importlib.util.find_spec(module) is not None
            except (ImportError, ValueError):
                there = False
            (met if there else lacking).append(f"{name} (its version is not known)" if there else line)
    return lacking, met


def build(order, log):
    """Checks the code; the log says how far it came."""
    folder = order["code"]
    files = sorted(os.path.relpath(os.path.join(at, f), folder) for at, _, names in os.walk(folder) for f in names if f.endswith(".py"))
    for file in files:
        try:
            with open(os.path.join(folder, file), "rb") as f:
                compile(f.read(), file, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as e:
            raise Refused(f"{file}: {brief(e)}") from None
    log.append(f"compiled {len(files)} {'file' if len(files) == 1 else 'files'}: " + ", ".join(files[:20]) + (" …" if len(files) > 20 else ""))
    lacking, met = missing(order.get("requirements", ""))
    if met:
        log.append("required and there: " + ", ".join(met))
    if lacking:
        raise Refused("requirements: not there: " + ", ".join(lacking) + f": have them installed for Python {sys.version.split()[0]} on the machines that run evaluators, or put them beside the code")
    call = find(order)
    log.append(f"imported {order['entry']} and found {order['function']}")
    result = attempt(call, SMOKE)
    if result["valid"]:
        log.append(f"called it once: score {result['score']:g}")
    else:
        log.append(f"called it once with a row of no meaning: {result['reason']} (rows of its own may be what it needs)")


def find(order):
    if order["entry"].endswith(".json"):
        with open(os.path.join(order["code"], order["entry"])) as f:
            return criteria(order["code"], [(c["name"], c["file"], c["function"]) for c in json.load(f)])
    return load(order["code"], order["entry"], order["function"])


# Being bounded.

def bound(limits):
    """Holds this process, and all that it starts, to limits, and its memory shut to them."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as f:
        f.write("1000")  # when the machine has no memory left, this ends first
    for name, value in limits.items():
        kind = getattr(resource, "RLIMIT_" + name, None)
        if kind is not None and value > 0:
            hard = resource.getrlimit(kind)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (value, value))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: its children cannot open its memory and descriptors


def main():
    line = socket.socket(fileno=3)
    line.set_inheritable(False)
    orders = line.makefile("rb", buffering=1 << 16)
    order = json.loads(orders.readline())
    token = order["token"]
    printed = Printed(order["output"])
    bound(order["limits"])
    sys.dont_write_bytecode = True
    sys.argv = [order["entry"]]
    os.environ.update(order.get("env") or {})
    offer_kits()

    def answer(message):
        message["token"] = token
        line.sendall(json.dumps(message, allow_nan=False).encode() + b"\n")

    log = []
    try:
        os.chdir(order["code"])
        if order.get("build"):
            build(order, log)
            answer({"log": log, **printed.take()})
            return
        call = find(order)
        answer({**printed.take()})
    except Refused as e:
        answer({"refused": clip(e, 4000), "log": log, **printed.take()})
        return
    while ask := orders.readline():
        ask = json.loads(ask)
        printed.hold()
        result = attempt(call, ask["row"])
        usage = resource.getrusage(resource.RUSAGE_SELF)
        answer({"id": ask["id"], "cpu": usage.ru_utime + usage.ru_stime, **result, **printed.take()})


main()
