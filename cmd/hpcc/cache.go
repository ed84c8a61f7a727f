package main

import (
	"strings"

	"hpcc/build"
)

// cacheSources reads --cache-from: REF, or as docker build has it,
// type=registry,ref=REF.
func cacheSources(list []string) []string {
	var out []string
	for _, arg := range list {
		ref, _ := cacheWords(arg)
		out = append(out, ref)
	}
	return out
}

// cacheTarget reads --cache-to; nil when it was not given.
func cacheTarget(arg string) (ref string, c *build.Cache, err error) {
	if arg == "" {
		return "", nil, nil
	}
	ref, words := cacheWords(arg)
	for k, v := range words {
		if k != "mode" || v != "min" && v != "max" {
			return "", nil, usagef("--cache-to %q: %s=%s is not known", arg, k, v).hint("write --cache-to REF or REF,mode=min")
		}
	}
	if ref == "" {
		return "", nil, usagef("--cache-to %q names no registry's reference", arg).hint("write --cache-to registry.example.org/me/app:cache")
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
