"""Runs an evaluator's code in a separate process.

Requests and responses are lines of JSON over a socket, separate from what the code
prints. The first request is the setup, which names the code to import, or to check
for a build. Each further request scores one row.
"""

import asyncio, contextlib, ctypes, importlib.metadata, importlib.util, inspect, io, json, math, os, re
import resource, socket, sys, traceback, types

SELF = "<string>"  # the file name of this program in tracebacks


# Output of the code.

class BoundedWriter(io.RawIOBase):
    """Records the first bytes that are written, up to a limit."""

    def __init__(self, limit):
        self.limit, self.data, self.cut = limit, bytearray(), False

    def writable(self):
        return True

    def write(self, data):
        data = bytes(data)
        free = self.limit - len(self.data)
        self.data += data[:max(free, 0)]
        self.cut = self.cut or len(data) > free
        return len(data)


class Output:
    """Replaces sys.stdout and sys.stderr and records what is written to them."""

    def __init__(self, limit):
        self.limit = limit
        self.clear()

    def clear(self):
        self.raw = [BoundedWriter(self.limit), BoundedWriter(self.limit)]
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True) for raw in self.raw)

    def restore(self):
        """Replaces sys.stdout and sys.stderr again if the code has replaced or closed them."""
        for stream, raw in zip((sys.stdout, sys.stderr), self.raw):
            if raw.closed or getattr(stream, "buffer", None) is not raw:
                return self.clear()

    def take(self):
        """Returns the recorded output as fields of a response, and discards it."""
        if not any(raw.data for raw in self.raw):
            return {}
        texts = [raw.data.decode("utf-8", "replace") + ("\n[cut]" if raw.cut else "") for raw in self.raw]
        self.clear()
        return {"stdout": texts[0], "stderr": texts[1]}


# Substitutes for the packages in KITS that are not installed.

class Message(dict):
    """A message whose fields are also attributes."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)

    def model_dump(self, **_):
        return dict(self)


class Record:
    """An object with the given fields."""

    def __init__(self, score=None, reason=None, is_score_valid=True, metrics=None, **more):
        self.score, self.reason, self.is_score_valid, self.metrics = score, reason, is_score_valid, metrics
        self.__dict__.update(more)


class EvaluateResult(Record):
    pass


class MetricResult(Record):
    pass


def reward_function(function=None, **_):
    """Decorates a function to receive messages as objects, as reward_kit and eval_protocol do."""
    if function is None:
        return reward_function

    def typed(*args, **row):
        if isinstance(row.get("messages"), list):
            row["messages"] = [Message(m) if isinstance(m, dict) else m for m in row["messages"]]
        return function(*args, **row)

    typed.__name__, typed.__wrapped__ = function.__name__, function
    return typed


KITS = ("reward_kit", "reward_kit.models", "reward_kit.typed_interface",
        "eval_protocol", "eval_protocol.models", "eval_protocol.typed_interface")


def offer_kits():
    """Registers a substitute for each package in KITS that is not installed."""
    for name in KITS:
        root = name.split(".")[0]
        if root not in sys.modules and importlib.util.find_spec(root):
            continue  # the package is installed
        kit = types.ModuleType(name)
        kit.__path__ = []
        kit.reward_function, kit.Message = reward_function, Message
        kit.EvaluateResult, kit.MetricResult = EvaluateResult, MetricResult
        sys.modules[name] = kit
        if "." in name:
            setattr(sys.modules[root], name.split(".")[1], kit)


# Importing the code.

class CodeError(Exception):
    """An error of the code that the user must fix."""


def load(directory, file, function):
    """Imports a file and returns a function that scores a row."""
    path = os.path.join(directory, file)
    own = os.path.dirname(path)
    sys.path[:0] = [directory] if own == directory else [own, directory]
    name = os.path.splitext(os.path.basename(file))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or not os.path.isfile(path):
        raise CodeError(f"{file}: the code has no Python file of this name: correct the entry file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as e:
        print(format_exception(e), file=sys.stderr)
        raise CodeError(f"{file}: cannot be imported: {summarize(e)}") from None
    found = getattr(module, function, None)
    if not callable(found):
        raise CodeError(f"{file}: has no function {function}: define "
                        f"`def {function}(messages, ground_truth=None, **kwargs)`, or set another entry function")
    return row_function(found, f"{file}::{function}")


def row_function(function, where):
    """Returns a function that scores a row: it calls function with the fields that function accepts."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise CodeError(f"{where}: the parameters of the function cannot be inspected: define it with def") from None
    if any(p.kind is p.POSITIONAL_ONLY for p in parameters):
        raise CodeError(f"{where}: is called with keyword arguments, but has positional-only parameters: "
                        "remove the / from the parameters")
    accepts_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}

    def call(row):
        result = function(**(row if accepts_all else {k: v for k, v in row.items() if k in names}))
        return asyncio.run(wait(result)) if inspect.isawaitable(result) else result

    return call


async def wait(result):
    return await result


def load_criteria(directory, parts):
    """Combines several functions: the score is the mean of their scores, and each of these is also a metric."""
    loaded = []
    for name, file, function in parts:
        before = set(sys.modules)
        loaded.append((name, load(directory, file, function)))
        for module in set(sys.modules) - before:  # another function may import modules with the same names
            if os.path.dirname(os.path.join(directory, file)) in str(getattr(sys.modules[module], "__file__", "")):
                del sys.modules[module]

    def evaluate(row):
        scores, metrics, reasons = [], {}, []
        for name, call in loaded:
            one = to_score(call(row))
            if not one["valid"]:
                return {"score": 0, "is_score_valid": False, "reason": f"{name}: {one['reason']}"}
            scores.append(one["score"])
            metrics[name] = one["score"]
            metrics.update({f"{name}/{k}": v for k, v in one["metrics"].items()})
            if one["reason"]:
                reasons.append(f"{name}: {one['reason']}")
        return {"score": sum(scores) / len(scores), "reason": "; ".join(reasons), "metrics": metrics}

    return evaluate


# Converting results.

def clip(text, limit=2000):
    text = str(text)
    return text if len(text) <= limit else text[:limit] + "…"


def code_frames(e):
    """Returns the traceback frames of an exception that are neither in this program nor in the import system."""
    return [f for f in traceback.extract_tb(e.__traceback__)
            if f.filename != SELF and not f.filename.startswith("<frozen")]


def summarize(e):
    """Returns an exception as one line, with its place in the code."""
    places = code_frames(e)
    where = f" ({os.path.basename(places[-1].filename)}:{places[-1].lineno})" if places else ""
    if isinstance(e, SyntaxError) and e.filename:
        where = f" ({os.path.basename(e.filename)}:{e.lineno})"
        return clip(f"SyntaxError: {e.msg}{where}")
    if isinstance(e, SystemExit):
        return clip(f"the code called sys.exit{where}: return a score instead")
    return clip(f"{type(e).__name__}: {e}{where}")


def format_exception(e):
    """Returns the traceback of an exception, without the frames of this program."""
    return "".join(traceback.format_list(code_frames(e)) + traceback.format_exception_only(type(e), e)).rstrip()


def field(result, name, default=None):
    return result.get(name, default) if isinstance(result, dict) else getattr(result, name, default)


def number(value):
    """Converts a value to a finite number; None if it is not one."""
    if isinstance(value, (str, bytes, type(None))):
        return None
    try:
        value = float(value)
    except Exception:
        return None
    return value if math.isfinite(value) else None


def invalid(reason):
    return {"score": 0, "valid": False, "reason": clip(reason), "metrics": {}}


def to_score(result):
    """Converts the result of a function to a score."""
    value, reason, metrics = result, "", {}
    if isinstance(result, dict) or hasattr(result, "score"):
        value, metrics = field(result, "score"), field(result, "metrics") or {}
        reason = field(result, "reason") or field(result, "error") or ""
        if not field(result, "is_score_valid", True):
            return invalid(reason or "is_score_valid is false")
    score = number(value)
    if score is None:
        return invalid(f"the score {clip(repr(value), 200)} is not a number: return a number between 0 and 1, "
                       "or an object with a score")
    if not 0 <= score <= 1:
        return invalid(f"the score {score:g} is not between 0 and 1: return a number in this range")
    values = {}
    if isinstance(metrics, dict):
        for name, one in list(metrics.items())[:64]:
            metric = number(one if not (isinstance(one, dict) or hasattr(one, "score")) else field(one, "score"))
            if metric is not None:
                values[clip(name, 128)] = metric
    return {"score": score, "valid": True, "reason": clip(reason), "metrics": values}


def score_row(call, row):
    try:
        return to_score(call(row))
    except BaseException as e:
        print(format_exception(e), file=sys.stderr)
        return invalid(summarize(e))


# Building.

REQUIREMENT = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*([^;#]*)")
EXAMPLE_ROW = {"messages": [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "4"}],
               "ground_truth": "4", "tools": None}


def version(text):
    return [int(n) for n in re.findall(r"\d+", text)[:4]] + [0] * (4 - len(re.findall(r"\d+", text)[:4]))


def satisfies(installed, specifier):
    """Reports whether a version satisfies a specifier such as ">=1.0,<2"."""
    tests = {"==": lambda a, b: a == b, ">=": lambda a, b: a >= b, "<=": lambda a, b: a <= b,
             ">": lambda a, b: a > b, "<": lambda a, b: a < b, "!=": lambda a, b: a != b}
    for part in filter(None, (p.strip() for p in specifier.split(","))):
        sign, wanted = re.match(r"(~=|===?|!=|>=|<=|>|<)?\s*(.*)", part).groups()
        if sign == "~=":
            depth = len(re.findall(r"\d+", wanted)) - 1
            if version(installed) < version(wanted) or version(installed)[:depth] != version(wanted)[:depth]:
                return False
        elif wanted.endswith(".*"):
            depth = len(re.findall(r"\d+", wanted))
            if (version(installed)[:depth] == version(wanted)[:depth]) != (sign != "!="):
                return False
        elif sign and not tests[sign[:2]](version(installed), version(wanted)):
            return False
    return True


def check_requirements(requirements):
    """Returns the requirements that are not installed, and the installed ones with their versions."""
    missing, installed = [], []
    for line in requirements.splitlines():
        line = line.split("#")[0].strip()
        found = REQUIREMENT.match(line)
        if not line:
            continue
        if not found or line.startswith("-"):
            missing.append(line)
            continue
        name, specifier = found.groups()
        try:
            have = importlib.metadata.version(name)
            if satisfies(have, specifier):
                installed.append(f"{name} {have}")
            else:
                missing.append(f"{line} (installed: {have})")
        except importlib.metadata.PackageNotFoundError:
            module = name.replace("-", "_")
            try:
                found = module in sys.modules or importlib.util.find_spec(module) is not None
            except (ImportError, ValueError):
                found = False
            if found:
                installed.append(f"{name} (unknown version)")
            else:
                missing.append(line)
    return missing, installed


def build(setup, log):
    """Checks the code and logs each step. Returns why the function gives an example row no valid score, or ""."""
    directory = setup["code"]
    files = sorted(os.path.relpath(os.path.join(at, f), directory)
                   for at, _, names in os.walk(directory) for f in names if f.endswith(".py"))
    for file in files:
        try:
            with open(os.path.join(directory, file), "rb") as f:
                compile(f.read(), file, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as e:
            raise CodeError(f"{file}: {summarize(e)}") from None
    log.append(f"compiled {len(files)} {'file' if len(files) == 1 else 'files'}: " + ", ".join(files[:20]) +
               (" …" if len(files) > 20 else ""))
    missing, installed = check_requirements(setup.get("requirements", ""))
    if installed:
        log.append("requirements installed: " + ", ".join(installed))
    if missing:
        raise CodeError("requirements: not installed: " + ", ".join(missing) +
                        f": install them for Python {sys.version.split()[0]} on the nodes that run evaluators, "
                        "or include them in the code")
    call = load_entry(setup)
    log.append(f"imported {setup['entry']} and found {setup['function']}")
    result = score_row(call, EXAMPLE_ROW)
    if result["valid"]:
        log.append(f"called the function with an example row: score {result['score']:g}")
        return ""
    log.append(f"called the function with an example row: no valid score: {result['reason']} "
               "(the function may require fields that the example row lacks)")
    return clip(result["reason"], 1000)


def load_entry(setup):
    """Imports the entry file, or all files that a JSON entry file lists, and returns a function that scores a row."""
    if setup["entry"].endswith(".json"):
        with open(os.path.join(setup["code"], setup["entry"])) as f:
            return load_criteria(setup["code"], [(c["name"], c["file"], c["function"]) for c in json.load(f)])
    return load(setup["code"], setup["entry"], setup["function"])


# Limits.

def set_limits(limits):
    """Limits the resources of this process and its children, and denies children access to this process's memory."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as f:
        f.write("1000")  # the first process that the kernel kills when memory runs out
    for name, value in limits.items():
        kind = getattr(resource, "RLIMIT_" + name, None)
        if kind is not None and value > 0:
            hard = resource.getrlimit(kind)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (value, value))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE 0 protects this process's memory and descriptors


def main():
    conn = socket.socket(fileno=3)
    conn.set_inheritable(False)
    requests = conn.makefile("rb", buffering=1 << 16)
    setup = json.loads(requests.readline())
    token = setup["token"]
    output = Output(setup["output"])
    set_limits(setup["limits"])
    sys.dont_write_bytecode = True
    sys.argv = [setup["entry"]]
    os.environ.update(setup.get("env") or {})
    offer_kits()

    def respond(message):
        message["token"] = token
        conn.sendall(json.dumps(message, allow_nan=False).encode() + b"\n")

    log = []
    try:
        os.chdir(setup["code"])
        if setup.get("build"):
            trial = build(setup, log)
            respond({"log": log, "trial": trial, **output.take()})
            return
        call = load_entry(setup)
        respond({**output.take()})
    except CodeError as e:
        respond({"refused": clip(e, 4000), "log": log, **output.take()})
        return
    while line := requests.readline():
        request = json.loads(line)
        output.restore()
        result = score_row(call, request["row"])
        usage = resource.getrusage(resource.RUSAGE_SELF)
        respond({"id": request["id"], "cpu": usage.ru_utime + usage.ru_stime, **result, **output.take()})


main()
