package metrics

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// A TensorBoard event file is a TFRecord file of Event messages:
//
//	length uint64 | its masked CRC-32C uint32 | data | its masked CRC-32C uint32	(all little endian)
//
// The messages are those of tensorboard/compat/proto: event.proto, summary.proto,
// tensor.proto, tensor_shape.proto, types.proto.

// Limits of an event file. Larger records, such as graphs and pictures, are verified and
// skipped.
const (
	maxEvents = 8 << 30  // bytes of a file
	maxEvent  = 16 << 20 // bytes of a decoded record
	maxTags   = 10_000   // series
	maxTag    = 1 << 10  // bytes of a name
)

// errTorn reports that a file ends within a record: its writer was killed, or is still
// running.
var errTorn = errors.New("it ends within a record")

// readEvents adds the scalars of a TensorBoard event file to r, by tag and in the file's order.
// A file that ends within a record is not an error, because its writer may have been killed or
// may still run. A wrong checksum is an error; the values before it are kept.
func (r Results) readEvents(in io.Reader) error {
	b := bufio.NewReaderSize(io.LimitReader(in, maxEvents), 64<<10)
	var data []byte
	for n := 1; ; n++ {
		event, err := nextRecord(b, &data)
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, errTorn):
			return nil
		case err == nil:
			err = r.event(event)
		}
		if err != nil {
			return fmt.Errorf("record %d: %w", n, err)
		}
	}
}

// castagnoli is the polynomial of CRC-32C.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// mask is TFRecord's transformation of checksums, which keeps checksums of data with
// embedded checksums distinct.
func mask(sum uint32) uint32 { return (sum>>15 | sum<<17) + 0xa282ead8 }

// nextRecord reads a record, into data if it fits. It returns nil for a record that is too
// large to decode.
func nextRecord(in io.Reader, data *[]byte) ([]byte, error) {
	var head [12]byte
	if n, err := io.ReadFull(in, head[:]); err != nil {
		if n > 0 && errors.Is(err, io.ErrUnexpectedEOF) {
			err = errTorn
		}
		return nil, err
	}
	if mask(crc32.Checksum(head[:8], castagnoli)) != binary.LittleEndian.Uint32(head[8:]) {
		return nil, errors.New("wrong checksum of the record length: not an event file, or damaged")
	}
	length := binary.LittleEndian.Uint64(head[:8])
	if length > maxEvents {
		return nil, fmt.Errorf("it has %d bytes: want at most %d", length, int64(maxEvents))
	}
	record, sum, err := body(in, int64(length), data)
	if err == nil {
		_, err = io.ReadFull(in, head[:4])
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, errTorn
	}
	if err != nil {
		return nil, err
	}
	if mask(sum) != binary.LittleEndian.Uint32(head[:4]) {
		return nil, errors.New("wrong checksum of the data")
	}
	return record, nil
}

// body reads a record's content and its checksum. Memory grows with the received bytes, not
// with the announced length.
func body(in io.Reader, length int64, data *[]byte) ([]byte, uint32, error) {
	if length > maxEvent {
		h := crc32.New(castagnoli)
		_, err := io.CopyN(h, in, length)
		return nil, h.Sum32(), err
	}
	const piece = 1 << 20
	buf := (*data)[:0]
	for rest := int(length); rest > 0; {
		n := min(rest, piece)
		at := len(buf)
		buf = append(buf, make([]byte, n)...)
		if _, err := io.ReadFull(in, buf[at:]); err != nil {
			return nil, 0, err
		}
		rest -= n
	}
	*data = buf
	return buf, crc32.Checksum(buf, castagnoli), nil
}

// eachField calls do for the fields of a message. number is a varint or fixed value, bytes a
// length-delimited one.
func eachField(b []byte, do func(field protowire.Number, number uint64, bytes []byte) error) error {
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		var number uint64
		var bytes []byte
		switch kind {
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(b)
		case protowire.Fixed32Type:
			var x uint32
			x, n = protowire.ConsumeFixed32(b)
			number = uint64(x)
		case protowire.Fixed64Type:
			number, n = protowire.ConsumeFixed64(b)
		case protowire.BytesType:
			bytes, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(field, kind, b)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if err := do(field, number, bytes); err != nil {
			return err
		}
	}
	return nil
}

// event records the scalars of an Event: summary is field 5, its values are field 1.
func (r Results) event(b []byte) error {
	return eachField(b, func(field protowire.Number, _ uint64, summary []byte) error {
		if field != 5 {
			return nil
		}
		return eachField(summary, func(field protowire.Number, _ uint64, value []byte) error {
			if field != 1 {
				return nil
			}
			return r.value(value)
		})
	})
}

// value records a Summary.Value if it is a scalar: tag 1, simple_value 2, tensor 8.
func (r Results) value(b []byte) error {
	tag, scalar, found := "", 0.0, false
	err := eachField(b, func(field protowire.Number, number uint64, bytes []byte) (err error) {
		switch field {
		case 1:
			tag = string(bytes[:min(len(bytes), maxTag)])
		case 2:
			scalar, found = float64(math.Float32frombits(uint32(number))), true
		case 8:
			scalar, found, err = tensorScalar(bytes)
		}
		return err
	})
	if err == nil && found && tag != "" {
		r.put(tag, scalar)
	}
	return err
}

// Types of tensor elements (types.proto) that scalars may have.
const (
	dtFloat    = 1
	dtDouble   = 2
	dtInt32    = 3
	dtInt64    = 9
	dtBfloat16 = 14
	dtHalf     = 19
)

// tensorScalar reads a scalar TensorProto: dtype 1, tensor_shape 2, tensor_content 4, and
// the values by type. found is false if it has dimensions or another type.
func tensorScalar(b []byte) (x float64, found bool, err error) {
	dtype, dimensions := uint64(0), false
	var content, packed []byte
	var single uint64
	var from protowire.Number
	err = eachField(b, func(field protowire.Number, number uint64, bytes []byte) error {
		switch field {
		case 1:
			dtype = number
		case 2: // a shape: its dimensions are field 2
			return eachField(bytes, func(field protowire.Number, _ uint64, _ []byte) error {
				dimensions = dimensions || field == 2 || field == 3 // 3: unknown rank
				return nil
			})
		case 4:
			content = bytes
		case 5, 6, 7, 10, 13:
			from, packed, single = field, bytes, number
		}
		return nil
	})
	if err != nil || dimensions {
		return 0, false, err
	}
	if content != nil {
		x, found = scalarContent(dtype, content)
		return x, found, nil
	}
	x, found = scalarValue(from, dtype, packed, single)
	return x, found, nil
}

// scalarContent decodes an element from tensor_content, its little-endian representation in
// memory.
func scalarContent(dtype uint64, b []byte) (float64, bool) {
	switch {
	case dtype == dtFloat && len(b) == 4:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b))), true
	case dtype == dtDouble && len(b) == 8:
		return math.Float64frombits(binary.LittleEndian.Uint64(b)), true
	case dtype == dtInt32 && len(b) == 4:
		return float64(int32(binary.LittleEndian.Uint32(b))), true
	case dtype == dtInt64 && len(b) == 8:
		return float64(int64(binary.LittleEndian.Uint64(b))), true
	case dtype == dtHalf && len(b) == 2:
		return half(binary.LittleEndian.Uint16(b)), true
	case dtype == dtBfloat16 && len(b) == 2:
		return bfloat(binary.LittleEndian.Uint16(b)), true
	}
	return 0, false
}

// scalarValue decodes an element from the field for its type, which is packed, as most writers
// encode it, or a single value.
func scalarValue(field protowire.Number, dtype uint64, packed []byte, single uint64) (float64, bool) {
	switch {
	case packed == nil:
	case (field == 5) == (len(packed) == 4) && (field == 6) == (len(packed) == 8) && field <= 6:
		return scalarContent(dtype, packed)
	default:
		x, n := protowire.ConsumeVarint(packed)
		if n != len(packed) {
			return 0, false
		}
		single = x
	}
	switch {
	case field == 5 && dtype == dtFloat:
		return float64(math.Float32frombits(uint32(single))), true
	case field == 6 && dtype == dtDouble:
		return math.Float64frombits(single), true
	case field == 7:
		return float64(int32(single)), true
	case field == 10:
		return float64(int64(single)), true
	case field == 13 && dtype == dtHalf:
		return half(uint16(single)), true
	case field == 13 && dtype == dtBfloat16:
		return bfloat(uint16(single)), true
	}
	return 0, false
}

// bfloat decodes a bfloat16, the upper half of a 32-bit float.
func bfloat(b uint16) float64 { return float64(math.Float32frombits(uint32(b) << 16)) }

// half decodes an IEEE 754 binary16.
func half(b uint16) float64 {
	sign, exponent, fraction := 1.0, int(b>>10&31), float64(b&1023)
	if b>>15 == 1 {
		sign = -1
	}
	switch exponent {
	case 0:
		return sign * math.Ldexp(fraction, -24)
	case 31:
		if fraction != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	}
	return sign * math.Ldexp(1024+fraction, exponent-25)
}
