"""What tests, benchmarks and `docgrid doctor` share: builders of rows, and the checker of the invariants."""
