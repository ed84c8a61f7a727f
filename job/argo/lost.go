package argo

import (
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// lostFields returns the fields of a manifest that are missing in what a server stored: it is too
// old for them, or does not allow them. It ignores empty values, which servers omit, and changed
// spellings of values.
func lostFields(sent *item, stored json.RawMessage) ([]string, error) {
	var has map[string]any
	if err := json.Unmarshal(stored, &has); err != nil {
		return nil, fmt.Errorf("reading what the server stored: %w", err)
	}
	var lost []string
	for _, name := range []string{"metadata", "spec"} {
		if it := sent.at(name); it != nil {
			lost = append(lost, it.lost(has[name])...)
		}
	}
	return lost, nil
}

func (it *item) lost(stored any) (lost []string) {
	switch it.shape {
	case yaml.MappingNode:
		has, ok := stored.(map[string]any)
		if !ok {
			return it.paths(stored != nil)
		}
		for _, e := range it.fields {
			lost = append(lost, e.value.lost(has[e.name])...)
		}
		return lost
	case yaml.SequenceNode:
		has, ok := stored.([]any)
		if !ok {
			return it.paths(stored != nil)
		}
		for i, v := range it.list {
			if i < len(has) {
				lost = append(lost, v.lost(has[i])...)
			} else {
				lost = append(lost, v.path)
			}
		}
		return lost
	}
	return it.paths(stored != nil)
}

// paths returns the item's own path, or nothing if the item is there or is empty.
func (it *item) paths(there bool) []string {
	empty := it.scalar == nil || it.scalar == "" || it.scalar == false || it.scalar == 0
	if there || (empty && len(it.list)+len(it.fields) == 0) {
		return nil
	}
	return []string{it.path}
}
