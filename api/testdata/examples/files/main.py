def evaluate(messages, ground_truth=None, **kwargs):
    """Scores the last message: does it contain the policy, in at most 60 words?"""
    reply = messages[-1]["content"]
    names_policy = ground_truth is None or ground_truth.lower() in reply.lower()
    brief = len(reply.split()) <= 60
    return {
        "score": 1.0 if names_policy and brief else 0.3,
        "reason": "names the policy" if names_policy else f"does not name the policy: {ground_truth}",
        "metrics": {"names_policy": float(names_policy), "brevity": float(brief)},
    }
