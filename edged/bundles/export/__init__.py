"""Other forms of a model: ORT format, int8, files for other programs."""
