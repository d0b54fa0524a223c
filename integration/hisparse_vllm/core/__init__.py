"""What stands between vLLM Core and the ops: Core's op names, its versions, and devices it takes to be CUDA."""
