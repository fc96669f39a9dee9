"""`make test-container`: the files of deploy/container, executed without a container engine."""
