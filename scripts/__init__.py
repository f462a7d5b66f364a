"""The command line, benchmarks, conformance suites, and the training of the demo model."""
