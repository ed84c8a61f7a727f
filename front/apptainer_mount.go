package front

import (
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A mount is a bind of a host path, or an empty directory if its source is "".
type mount struct {
	source, at string
	readOnly   bool
	mode, size string // of an empty directory; size may be ""
	noExec     bool   // an empty directory from which no program can be executed
	noAtime    bool   // an empty directory whose files keep their times of access
}

// below reports whether path is dir or in it.
func below(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// splitEscaped splits text at a separator that no backslash precedes.
func splitEscaped(text string, separator byte) []string {
	out := []string{""}
	for i := 0; i < len(text); i++ {
		last := &out[len(out)-1]
		switch {
		case text[i] == '\\' && i+1 < len(text):
			*last += text[i : i+2]
			i++
		case text[i] == separator:
			out = append(out, "")
		default:
			*last += text[i : i+1]
		}
	}
	return out
}

// unescape removes the backslashes before commas and colons.
func unescape(s string) string { return strings.NewReplacer(`\,`, ",", `\:`, ":").Replace(s) }

// binds reads a list SRC[:DST[:OPTIONS]],... of --bind.
func (a *apptainer) binds(list string) (out []mount, err error) {
	for _, item := range splitEscaped(list, ',') {
		f := splitEscaped(item, ':')
		if len(f) == 1 && len(out) > 0 {
			if known, err := a.bindOption(&out[len(out)-1], item, list); known || err != nil {
				if err != nil {
					return nil, err
				}
				continue
			}
		}
		if len(f) > 3 || f[0] == "" {
			return nil, refusal(a.program, "--bind "+list, fmt.Sprintf("%q is not SRC[:DST[:OPTIONS]]", item),
				`write \: for a colon and \, for a comma in a path`)
		}
		m := mount{source: a.absolute(unescape(f[0]))}
		if m.at = m.source; len(f) > 1 && f[1] != "" {
			m.at = unescape(f[1])
		}
		if len(f) == 3 {
			if known, err := a.bindOption(&m, f[2], list); !known || err != nil {
				if err == nil {
					err = refusal(a.program, "--bind "+list, fmt.Sprintf("unknown option %q", f[2]), "the options are ro and rw")
				}
				return nil, err
			}
		}
		if !filepath.IsAbs(m.at) {
			return nil, refusal(a.program, "--bind "+list, fmt.Sprintf("the destination %q is not absolute", m.at), "")
		}
		m.at = filepath.Clean(m.at)
		out = append(out, m)
	}
	return out, nil
}

// bindOption reads an option of a bind. known is false for another text.
func (a *apptainer) bindOption(m *mount, option, list string) (known bool, err error) {
	name, _, _ := strings.Cut(option, "=")
	switch name {
	case "ro":
		m.readOnly = true
	case "rw":
		m.readOnly = false
	case "image-src", "id":
		return true, refusal(a.program, "--bind "+list, "hpcc does not bind parts of image files",
			"unpack the image with hpcc unpack FILE DIR, and bind its directory")
	default:
		return false, nil
	}
	return true, nil
}

// mountOption reads the value of --mount, a line of CSV.
func (a *apptainer) mountOption(text string) (m mount, err error) {
	bad := func(why, advice string) (mount, error) {
		return m, refusal(a.program, "--mount "+text, why, advice)
	}
	fields, err := csv.NewReader(strings.NewReader(text)).Read()
	if err != nil {
		return bad("not a list of NAME=VALUE", "write type=bind,source=SRC,destination=DST")
	}
	kind := "bind"
	for _, f := range fields {
		name, v, _ := strings.Cut(f, "=")
		switch name {
		case "type":
			kind = v
		case "source", "src":
			m.source = a.absolute(v)
		case "destination", "dst", "target":
			m.at = v
		case "ro", "readonly":
			m.readOnly = v == "" || v == "true" || v == "1"
		case "image-src", "id":
			return bad("hpcc does not bind parts of image files", "unpack the image with hpcc unpack FILE DIR, and bind its directory")
		case "bind-propagation":
			return bad("hpcc binds directories with all mounts below them, and never propagates changes", "leave bind-propagation out")
		default:
			return bad(fmt.Sprintf("unknown option %q", name), "write type=bind,source=SRC,destination=DST[,ro]")
		}
	}
	switch {
	case kind != "bind":
		return bad("only bind mounts are possible", "use --scratch DIR for an empty directory")
	case m.source == "" || !filepath.IsAbs(m.at):
		return bad("it needs a source, and an absolute destination", "write type=bind,source=SRC,destination=DST[,ro]")
	}
	m.at = filepath.Clean(m.at)
	return m, nil
}

// userMounts returns the mounts of --bind, --mount and --scratch.
func (a *apptainer) userMounts() (out []mount, err error) {
	for _, dir := range a.values["--scratch"] {
		for d := range strings.SplitSeq(dir, ",") {
			if d == "" {
				continue
			}
			m := mount{at: filepath.Join("/", d), mode: "1777"}
			if w := a.last("--workdir"); w != "" {
				m.source = filepath.Join(a.absolute(w), "scratch", d)
			}
			out = append(out, m)
		}
	}
	for _, list := range a.values["--bind"] {
		b, err := a.binds(list)
		if err != nil {
			return nil, err
		}
		out = append(out, b...)
	}
	for _, text := range a.values["--mount"] {
		m, err := a.mountOption(text)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// mountFlags returns the flags of "hpcc run" for mounts, in their order. hpcc mounts those of
// --bind before those of --mount, so a bind that overlaps a mount of --mount needs --mount too.
func (l *commandLine) mountFlags(all []mount) (flags []string, err error) {
	var others []string // destinations of --mount
	for _, m := range all {
		late := m.source == "" || slices.ContainsFunc(others, func(at string) bool { return below(m.at, at) || below(at, m.at) })
		if late {
			others = append(others, m.at)
		}
		colon, comma := strings.Contains(m.source+m.at, ":"), strings.ContainsAny(m.source+m.at, ",")
		switch {
		case (late || colon) && comma:
			return nil, refusal(l.program, "--bind "+m.source,
				"hpcc cannot mount a path with this combination of commas and colons", "rename the file, or bind its directory")
		case m.source == "":
			flag := "--mount=type=tmpfs,target=" + m.at + ",tmpfs-mode=" + m.mode
			if m.size != "" {
				flag += ",tmpfs-size=" + m.size
			}
			for _, o := range []struct {
				is   bool
				name string
			}{{m.noExec, "noexec"}, {m.noAtime, "noatime"}, {m.readOnly, "readonly"}} {
				if o.is {
					flag += "," + o.name
				}
			}
			flags = append(flags, flag)
		case late || colon:
			flag := "--mount=type=bind,source=" + m.source + ",target=" + m.at
			if m.readOnly {
				flag += ",readonly"
			}
			flags = append(flags, flag)
		case m.readOnly:
			flags = append(flags, "--bind="+m.source+":"+m.at+":ro")
		default:
			flags = append(flags, "--bind="+m.source+":"+m.at)
		}
	}
	return flags, nil
}

// mountPoints returns the files and directories to create in directories of the host, because
// other mounts are in them. Apptainer creates them; hpcc run does not.
func mountPoints(all []mount) (paths []string) {
	for i, m := range all {
		var in *mount
		for k := range all[:i] {
			if c := &all[k]; m.at != c.at && below(m.at, c.at) && (in == nil || len(c.at) >= len(in.at)) {
				in = c
			}
		}
		if in == nil || in.source == "" {
			continue
		}
		path := filepath.Join(in.source, strings.TrimPrefix(m.at, in.at))
		fi, err := os.Stat(m.source)
		switch {
		case m.source == "" || (err == nil && fi.IsDir()):
			paths = append(paths, path+"/")
		case err == nil:
			paths = append(paths, path)
		}
	}
	return paths
}
