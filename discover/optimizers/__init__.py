"""The optimizers, a family a file; `compose` makes an optimizer of a direction. All are public as `discover.NAME`."""
