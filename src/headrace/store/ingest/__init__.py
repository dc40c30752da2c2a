"""From folders, manifests, shards and datasets into a store: once, however often it is interrupted."""
