"""Stands in for peft, of which a training run of all parameters only imports names."""

LoraConfig = PeftModel = get_peft_model = None
