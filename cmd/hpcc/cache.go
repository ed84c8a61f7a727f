package main

import (
	"strings"

	"hpcc/build"
	"hpcc/store"
)

// cacheSources reads --cache-from: REF, or as docker build has it,
// type=registry,ref=REF.
func cacheSources(list []string) ([]string, error) {
	var out []string
	for _, arg := range list {
		ref, words := cacheWords(arg)
		if err := checkCache("--cache-from", arg, ref); err != nil {
			return nil, err
		}
		for k, v := range words {
			return nil, usagef("--cache-from %q: %s=%s is not known", arg, k, v).hint("write --cache-from REF")
		}
		out = append(out, ref)
	}
	return out, nil
}

// checkCache refuses what is no reference.
func checkCache(flag, arg, ref string) error {
	if _, err := store.Canonical(ref); err != nil {
		return usagef("%s %q: %w", flag, arg, err).hint("write %s registry.example.org/me/app:cache", flag)
	}
	return nil
}

// cacheTarget reads --cache-to; nil when it was not given.
func cacheTarget(arg string) (ref string, c *build.Cache, err error) {
	if arg == "" {
		return "", nil, nil
	}
	ref, words := cacheWords(arg)
	for k, v := range words {
		if k != "mode" || (v != "min" && v != "max") {
			return "", nil, usagef("--cache-to %q: %s=%s is not known", arg, k, v).hint("write --cache-to REF or REF,mode=min")
		}
	}
	if err := checkCache("--cache-to", arg, ref); err != nil {
		return "", nil, err
	}
	return ref, &build.Cache{Min: words["mode"] == "min"}, nil
}

// cacheWords splits REF,KEY=VALUE,… or type=registry,ref=REF,….
func cacheWords(arg string) (ref string, words map[string]string) {
	words = map[string]string{}
	for _, word := range strings.Split(arg, ",") {
		k, v, ok := strings.Cut(word, "=")
		switch {
		case !ok || k == "ref":
			ref = word[strings.Index(word, "=")+1:]
		case k == "type" && v == "registry":
		default:
			words[k] = v
		}
	}
	return ref, words
}
