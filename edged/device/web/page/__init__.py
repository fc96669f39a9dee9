"""The device page: sections, forms, timeline."""
