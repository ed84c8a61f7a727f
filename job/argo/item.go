package argo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"
)

// An item is a value of a manifest with its references resolved.
type item struct {
	line   int
	path   string
	scalar any     // string, bool, int, int64, uint64 or float64
	list   []*item // of a list
	fields []entry // of an object, in their order
	shape  yaml.Kind
}

// scalarItem returns an item that is neither a list nor an object.
func scalarItem(v any) *item { return &item{shape: yaml.ScalarNode, scalar: v} }

type entry struct {
	name  string
	value *item
}

// at returns the item below it at a path of field names, or nil.
func (it *item) at(names ...string) *item {
	for _, name := range names {
		if it == nil {
			return nil
		}
		i := slices.IndexFunc(it.fields, func(e entry) bool { return e.name == name })
		if i < 0 {
			return nil
		}
		it = it.fields[i].value
	}
	return it
}

// text returns a scalar below an item as text, or "".
func (it *item) text(names ...string) string {
	if it = it.at(names...); it == nil || it.scalar == nil {
		return ""
	}
	return fmt.Sprint(it.scalar)
}

// items returns the elements of a list below an item.
func (it *item) items(names ...string) []*item {
	if it = it.at(names...); it == nil {
		return nil
	}
	return it.list
}

// set sets a field of an object.
func (it *item) set(name string, value *item) {
	if i := slices.IndexFunc(it.fields, func(e entry) bool { return e.name == name }); i >= 0 {
		it.fields[i].value = value
		return
	}
	it.shape = yaml.MappingNode
	it.fields = append(it.fields, entry{name, value})
}

// drop removes a field and reports whether it existed.
func (it *item) drop(name string) bool {
	before := len(it.fields)
	it.fields = slices.DeleteFunc(it.fields, func(e entry) bool { return e.name == name })
	return len(it.fields) < before
}

// MarshalJSON writes the fields of objects in their original order.
func (it *item) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	err := it.write(&out)
	return out.Bytes(), err
}

func (it *item) write(out *bytes.Buffer) error {
	switch it.shape {
	case yaml.SequenceNode:
		out.WriteByte('[')
		for i, c := range it.list {
			if i > 0 {
				out.WriteByte(',')
			}
			if err := c.write(out); err != nil {
				return err
			}
		}
		out.WriteByte(']')
		return nil
	case yaml.MappingNode:
		out.WriteByte('{')
		for i, e := range it.fields {
			if i > 0 {
				out.WriteByte(',')
			}
			b, err := json.Marshal(e.name)
			if err != nil {
				return err
			}
			out.Write(append(b, ':'))
			if err := e.value.write(out); err != nil {
				return err
			}
		}
		out.WriteByte('}')
		return nil
	}
	b, err := json.Marshal(it.scalar)
	out.Write(b)
	return err
}
