#!/usr/bin/python3
"""write.py FILE: writes a TensorBoard event file with Google's protobuf library.

The message types are those of tensorboard/compat/proto that scalars need. protobuf
(Debian's python3-protobuf) encodes them. Checksums are computed bit by bit.
metrics/testdata/events.out.tfevents.recorded is its output; a test compares what
hpcc reads from that file with the values below.
"""
import struct
import sys

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

T = descriptor_pb2.FieldDescriptorProto
FIELDS = {
    "Dim": [("size", 1, T.TYPE_INT64)],
    "Shape": [("dim", 2, "Dim*"), ("unknown_rank", 3, T.TYPE_BOOL)],
    "Tensor": [("dtype", 1, T.TYPE_INT32), ("shape", 2, "Shape"), ("content", 4, T.TYPE_BYTES),
               ("float_val", 5, T.TYPE_FLOAT, True), ("double_val", 6, T.TYPE_DOUBLE, True), ("int_val", 7, T.TYPE_INT32, True),
               ("string_val", 8, T.TYPE_BYTES, True), ("int64_val", 10, T.TYPE_INT64, True), ("half_val", 13, T.TYPE_INT32, True)],
    "PluginData": [("plugin_name", 1, T.TYPE_STRING), ("content", 2, T.TYPE_BYTES)],
    "Metadata": [("plugin_data", 1, "PluginData"), ("display_name", 2, T.TYPE_STRING)],
    "Histo": [("min", 1, T.TYPE_DOUBLE), ("max", 2, T.TYPE_DOUBLE), ("bucket", 7, T.TYPE_DOUBLE, True)],
    "Image": [("height", 1, T.TYPE_INT32), ("width", 2, T.TYPE_INT32), ("encoded", 4, T.TYPE_BYTES)],
    "Value": [("tag", 1, T.TYPE_STRING), ("simple_value", 2, T.TYPE_FLOAT), ("image", 4, "Image"), ("histo", 5, "Histo"),
              ("node_name", 7, T.TYPE_STRING), ("tensor", 8, "Tensor"), ("metadata", 9, "Metadata")],
    "Summary": [("value", 1, "Value*")],
    "Event": [("wall_time", 1, T.TYPE_DOUBLE), ("step", 2, T.TYPE_INT64), ("file_version", 3, T.TYPE_STRING), ("graph_def", 4, T.TYPE_BYTES), ("summary", 5, "Summary")],
}


def messages():
    """Makes the classes; proto3, so that numbers are packed."""
    f = descriptor_pb2.FileDescriptorProto(name="events.proto", package="t", syntax="proto3")
    for name, fields in FIELDS.items():
        m = f.message_type.add(name=name)
        for field in fields:
            d = m.field.add(name=field[0], number=field[1], label=T.LABEL_OPTIONAL)
            if isinstance(field[2], str):
                d.type, d.type_name = T.TYPE_MESSAGE, ".t." + field[2].rstrip("*")
            else:
                d.type = field[2]
            if len(field) > 3 or isinstance(field[2], str) and field[2].endswith("*"):
                d.label = T.LABEL_REPEATED
            if name == "Value" and field[0] in ("simple_value", "image", "histo", "tensor"):
                if not m.oneof_decl:
                    m.oneof_decl.add(name="value")
                d.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(f)
    factory = message_factory.MessageFactory(pool)
    return {n: factory.GetPrototype(pool.FindMessageTypeByName("t." + n)) for n in FIELDS}


def masked(data):
    """CRC-32C by its definition, masked."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def main():
    m = messages()
    Event, Tensor = m["Event"], m["Tensor"]
    scalars = m["Metadata"](plugin_data=m["PluginData"](plugin_name="scalars"))
    with open(sys.argv[1], "wb") as out:
        def write(**fields):
            data = Event(**fields).SerializeToString()
            head = struct.pack("<Q", len(data))
            out.write(head + masked(head) + data + masked(data))

        def value(step, tag, **fields):
            write(wall_time=1.7e9 + step, step=step, summary=m["Summary"](value=[m["Value"](tag=tag, **fields)]))

        write(wall_time=1.7e9, file_version="brain.Event:2")
        write(wall_time=1.7e9, graph_def=b"\x00\xff" * 1000)
        for step, loss in enumerate([2.5, 0.5, 0.25, 0.75]):
            value(step, "loss", simple_value=loss)
        value(3, "nan/loss", simple_value=1.0)
        value(4, "nan/loss", simple_value=float("nan"))
        value(5, "accuracy", tensor=Tensor(dtype=1, shape=m["Shape"](), float_val=[0.5]), metadata=scalars)
        value(6, "accuracy", tensor=Tensor(dtype=1, shape=m["Shape"](), float_val=[0.875]))
        value(6, "content", tensor=Tensor(dtype=1, shape=m["Shape"](), content=struct.pack("<f", -1.5)), metadata=scalars)
        value(6, "double", tensor=Tensor(dtype=2, double_val=[1e300]))
        value(6, "double.content", tensor=Tensor(dtype=2, content=struct.pack("<d", -1e300)))
        value(6, "int", tensor=Tensor(dtype=3, int_val=[-7]))
        value(6, "int64", tensor=Tensor(dtype=9, int64_val=[-(1 << 40)]))
        value(6, "half", tensor=Tensor(dtype=19, half_val=[0x3E00]))
        value(6, "bfloat16", tensor=Tensor(dtype=14, half_val=[0xBFC0]))
        value(6, "zero", simple_value=0.0)
        value(7, "weights", histo=m["Histo"](min=0, max=1, bucket=[1, 2, 3]))
        value(7, "picture", image=m["Image"](height=1, width=1, encoded=b"\x89PNG"))
        value(7, "vector", tensor=Tensor(dtype=1, shape=m["Shape"](dim=[m["Dim"](size=2)]), float_val=[1, 2]))
        value(7, "text", tensor=Tensor(dtype=7, string_val=[b"hello"]))
        write(wall_time=1.7e9, step=8, summary=m["Summary"](value=[m["Value"](tag="a", simple_value=1), m["Value"](tag="b", simple_value=2)]))


main()
