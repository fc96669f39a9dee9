"""The app that Flower runs: `edged fleet flower-app` copies these files."""
