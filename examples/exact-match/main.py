"""Scores an answer by how it compares with the row's ground truth."""


def evaluate(messages, ground_truth=None, **kwargs):
    answer = messages[-1]["content"].strip()
    if answer == ground_truth:
        return {"score": 1.0, "reason": "exact", "metrics": {"length": len(answer)}}
    if ground_truth and ground_truth.lower() in answer.lower():
        return {"score": 0.5, "reason": "among other words", "metrics": {"length": len(answer)}}
    return {"score": 0.0, "reason": f"expected {ground_truth!r}", "metrics": {"length": len(answer)}}
