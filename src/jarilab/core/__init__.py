"""What every other package uses: errors, options, registries, shapes, devices, storage."""
