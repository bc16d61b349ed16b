"""The truth: what the operator's specification says each scenario writes, in plain torch on the CPU."""
