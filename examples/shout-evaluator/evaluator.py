def evaluate(messages, ground_truth="", **kwargs):
    """The share of letters that are right: what is nearly right teaches too."""
    answer = messages[-1]["content"]
    right = sum(a == b for a, b in zip(answer, ground_truth))
    return {
        "score": right / max(len(answer), len(ground_truth), 1),
        "reason": f"{right} of {len(ground_truth)} letters are right",
        "metrics": {"exact": float(answer == ground_truth)},
    }
