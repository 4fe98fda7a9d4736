"""Small data sets for the tests of data sets."""


def dataset(source, **meta):
    from twinkle.dataset import Dataset, DatasetMeta

    if isinstance(source, (list, dict)) or callable(source):
        return Dataset(DatasetMeta(data=source, **meta))
    return Dataset(DatasetMeta(source, **meta))


def dataset_meta(rows):
    from twinkle.dataset import DatasetMeta

    return DatasetMeta(data=rows)


def numbers(count):
    return [{"i": i} for i in range(count)]


def conversation(answer):
    messages = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": answer}]
    return {"messages": messages, "user_data": [["k", 1]], "id": len(answer)}
