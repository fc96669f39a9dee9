"""Pure rules of the coordinator: admission, aggregation, verdict, selection."""
