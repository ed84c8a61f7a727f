package trust

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// decode decodes a JSON value as protobuf does: it refuses names that v does not have or that
// occur twice in an object, null in lists, and text that is not UTF-8. All parsers of a bundle must
// read it in the same way.
func decode(text []byte, v any) error {
	if err := json.Unmarshal(text, v); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	_, err := exact(d, reflect.TypeOf(v))
	return err
}

// exact checks that the next value of d has the names of a type, or unique ones if t is nil. It
// returns the first token of the value.
func exact(d *json.Decoder, t reflect.Type) (json.Token, error) {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	first, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch first {
	case json.Delim('{'):
		err = exactObject(d, t)
	case json.Delim('['):
		err = exactList(d, t)
	default:
		if s, ok := first.(string); ok && strings.ContainsRune(s, '\ufffd') {
			err = errors.New("a string is not UTF-8")
		}
	}
	return first, err
}

func exactObject(d *json.Decoder, t reflect.Type) error {
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return err
		}
		name := token.(string)
		value, known := member(t, name)
		if !known || seen[name] {
			return fmt.Errorf("the field %.100q is unknown or occurs twice", name)
		}
		seen[name] = true
		if _, err := exact(d, value); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

func exactList(d *json.Decoder, t reflect.Type) error {
	var element reflect.Type
	if t != nil && t.Kind() == reflect.Slice {
		element = t.Elem()
	}
	for d.More() {
		first, err := exact(d, element)
		if err != nil {
			return err
		}
		if first == nil && element != nil {
			return errors.New("a list has a null")
		}
	}
	_, err := d.Token()
	return err
}

// member returns the type of a member of an object, or nil for any type.
func member(t reflect.Type, name string) (value reflect.Type, known bool) {
	switch {
	case t == nil || t.Kind() == reflect.Interface:
		return nil, true
	case t.Kind() == reflect.Map:
		if t = t.Elem(); t.Kind() == reflect.Interface {
			t = nil
		}
		return t, true
	case t.Kind() == reflect.Struct:
		for i := range t.NumField() {
			if tag, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); tag == name {
				return t.Field(i).Type, true
			}
		}
	}
	return nil, false
}

// An integer is a 64-bit number, which protobuf's JSON writes as text.
type integer int64

func (n *integer) UnmarshalJSON(b []byte) error {
	text := strings.TrimSuffix(strings.TrimPrefix(string(b), `"`), `"`)
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil || strconv.FormatInt(v, 10) != text {
		return fmt.Errorf("%.40s is not a number", b)
	}
	*n = integer(v)
	return nil
}

// An octets is a byte string in base64.
type octets []byte

func (o *octets) UnmarshalText(text []byte) (err error) {
	if bytes.ContainsAny(text, "\r\n") { // which the decoder ignores
		return errors.New("a byte string has a line break")
	}
	*o, err = base64.StdEncoding.AppendDecode(nil, text)
	return err
}
