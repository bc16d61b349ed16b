"""Pattern cards and the code they describe, to be embedded in a kernel."""
