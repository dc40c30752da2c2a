"""Run in the peers' environment: their own libraries read what our stores wrote. The argument is a folder."""

import json
import sys
from pathlib import Path

import webdataset
from streaming import StreamingDataset

folder = sys.argv[1]
dataset = StreamingDataset(local=f"{folder}/mds", shuffle=False, batch_size=1)
mds = [
    {
        name: value.hex() if isinstance(value, bytes) else getattr(value, "item", lambda value=value: value)()
        for name, value in dataset[at].items()
    }
    for at in range(dataset.num_samples)
]
tars = webdataset.WebDataset(sorted(map(str, Path(folder, "wds").glob("*.tar"))), shardshuffle=False)
wds = [{"data": each["bin"].hex(), "label": int(each["cls"]), "json": json.loads(each["json"])} for each in tars]
sys.stdout.write(json.dumps({"mds": mds, "wds": wds}) + "\n")
