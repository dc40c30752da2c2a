"""Sources of samples: folders, manifests, tars, shards, datasets, other stores."""
