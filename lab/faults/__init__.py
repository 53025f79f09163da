"""`make faults`: the operator under a fault at each of its writes, workflow by workflow, into build/faults.json."""
