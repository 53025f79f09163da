"""What a new pod becomes under the assignments that select it. Pure: may import api, workloads and the contract."""
