"""Messages of Protobuf as a compiler would generate them, with a field of every kind."""

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2, wrappers_pb2

F = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    "flag": F.TYPE_BOOL,
    "small": F.TYPE_INT32,
    "number": F.TYPE_INT64,
    "natural": F.TYPE_UINT64,
    "real": F.TYPE_DOUBLE,
    "text": F.TYPE_STRING,
    "raw": F.TYPE_BYTES,
}


def field(message, name, kind, number, **said):
    one = message.field.add(name=name, type=kind, number=number, label=F.LABEL_OPTIONAL)
    for key, value in said.items():
        setattr(one, key, value)
    return one


def _money():
    file = descriptor_pb2.FileDescriptorProto(name="tests/money.proto", package="tests.money", syntax="proto3")
    money = file.message_type.add(name="Money")
    field(money, "cents", F.TYPE_INT64, 1)
    return file


def _orders():
    file = descriptor_pb2.FileDescriptorProto(name="tests/orders.proto", package="tests", syntax="proto3")
    file.dependency.extend(
        ["tests/money.proto", *(one.DESCRIPTOR.name for one in (timestamp_pb2, duration_pb2, wrappers_pb2))]
    )
    colours = file.enum_type.add(name="Colour")
    for number, name in enumerate(("NONE", "RED", "BLUE")):
        colours.value.add(name=name, number=number)
    file.message_type.add(name="Before")
    order = file.message_type.add(name="Order")
    line = order.nested_type.add(name="Line")
    field(line, "sku", F.TYPE_STRING, 1)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    field(entry, "key", F.TYPE_STRING, 1)
    field(entry, "value", F.TYPE_INT64, 2)
    for number, (name, kind) in enumerate(SCALARS.items(), 1):
        field(order, name, kind, number)
    field(order, "lines", F.TYPE_MESSAGE, 10, type_name=".tests.Order.Line").label = F.LABEL_REPEATED
    field(order, "numbers", F.TYPE_INT32, 11).label = F.LABEL_REPEATED
    field(order, "counts", F.TYPE_MESSAGE, 12, type_name=".tests.Order.CountsEntry").label = F.LABEL_REPEATED
    field(order, "at", F.TYPE_MESSAGE, 13, type_name=".google.protobuf.Timestamp")
    field(order, "took", F.TYPE_MESSAGE, 14, type_name=".google.protobuf.Duration")
    field(order, "rating", F.TYPE_MESSAGE, 15, type_name=".google.protobuf.Int64Value")
    field(order, "colour", F.TYPE_ENUM, 16, type_name=".tests.Colour")
    field(order, "price", F.TYPE_MESSAGE, 17, type_name=".tests.money.Money")
    order.oneof_decl.add(name="way")
    field(order, "by_post", F.TYPE_STRING, 18, oneof_index=0)
    field(order, "by_hand", F.TYPE_INT32, 19, oneof_index=0)
    order.oneof_decl.add(name="_note")
    field(order, "note", F.TYPE_STRING, 20, oneof_index=1, proto3_optional=True)
    field(order, "parent", F.TYPE_MESSAGE, 21, type_name=".tests.Order")
    field(order, "share", F.TYPE_FLOAT, 22)
    field(order, "shares", F.TYPE_FLOAT, 23).label = F.LABEL_REPEATED
    return file


POOL = descriptor_pool.Default()
for _file in (_money(), _orders()):
    POOL.AddSerializedFile(_file.SerializeToString())
OrderMessage = message_factory.GetMessageClass(POOL.FindMessageTypeByName("tests.Order"))
LineMessage = message_factory.GetMessageClass(POOL.FindMessageTypeByName("tests.Order.Line"))
BeforeMessage = message_factory.GetMessageClass(POOL.FindMessageTypeByName("tests.Before"))
