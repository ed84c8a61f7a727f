package devices

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hpcc/runtime"
)

// yamlSpec is a spec in the form of nvidia-ctk. %[1]s is the driver's root.
const yamlSpec = `---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
      hostPath: %[1]s/dev/nvidia0
- name: "1"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia1
      hostPath: %[1]s/dev/nvidia1
- name: all
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
      hostPath: %[1]s/dev/nvidia0
    - path: /dev/nvidia1
      hostPath: %[1]s/dev/nvidia1
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  deviceNodes:
  - path: /dev/nvidiactl
    hostPath: %[1]s/dev/nvidiactl
  hooks:
  - hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
    args: [nvidia-cdi-hook, create-symlinks, --link, libcuda.so.1::/usr/lib/nv/libcuda.so, --link, "../libnvidia-ml.so.1::/usr/lib/nv/gbm/nvidia-drm_gbm.so"]
  - hookName: createContainer
    path: /usr/bin/nvidia-ctk
    args: [nvidia-ctk, hook, update-ldcache, --folder, /usr/lib/nv]
  mounts:
  - hostPath: %[1]s/usr/lib/nv/libcuda.so.550.54.14
    containerPath: /usr/lib/nv/libcuda.so.550.54.14
    options: [ro, nosuid, nodev, rbind, rprivate]
  - hostPath: %[1]s/usr/lib/nv/libnvidia-ml.so.550.54.14
    containerPath: /usr/lib/nv/libnvidia-ml.so.550.54.14
    options: [ro, nosuid, nodev, bind]
  - hostPath: %[1]s/usr/bin/nvidia-smi
    containerPath: /usr/bin/nvidia-smi
    options: [ro, nosuid, nodev, bind]
  - hostPath: %[1]s/run/nvidia-persistenced/socket
    containerPath: /run/nvidia-persistenced/socket
    options: [nosuid, nodev, noexec, bind]
`

// jsonSpec is the format of a minimal spec: its arguments are the version, the kind and the
// edits of device d0.
const jsonSpec = `{"cdiVersion": %q, "kind": %q, "devices": [{"name": "d0", "containerEdits": {%s}}, {"name": "d1", "containerEdits": {"env": ["D1=yes"]}}]}`

// TestCDI runs a program with devices whose spec has all fields that NVIDIA's tool writes.
func TestCDI(t *testing.T) {
	unsetGPUVariables(t)
	root, driver, dir := glibcRoot(t), fakeDriver(t), t.TempDir()
	writeFile(t, filepath.Join(dir, "nvidia.yaml"), fmt.Sprintf(yamlSpec, driver))
	if os.Geteuid() == 0 {
		t.Skip("run this as an ordinary user: root would create the nodes in this machine's own /dev")
	}
	for _, c := range []struct {
		name string
		d    Request
		gpus string // NVIDIA_VISIBLE_DEVICES; empty: unset
		want string // nodes of /dev
	}{
		{"one", Request{Names: []string{"nvidia.com/gpu=1"}}, "", "nvidia1 nvidiactl "},
		{"all", Request{Names: []string{"nvidia.com/gpu=all"}}, "", "nvidia0 nvidia1 nvidiactl "},
		{"--gpu", Request{GPU: true}, "", "nvidia0 nvidia1 nvidiactl "},
		{"--gpu with NVIDIA_VISIBLE_DEVICES", Request{GPU: true}, "0", "nvidia0 nvidiactl "},
	} {
		t.Setenv("NVIDIA_VISIBLE_DEVICES", c.gpus)
		if c.gpus == "" {
			os.Unsetenv("NVIDIA_VISIBLE_DEVICES")
		}
		s := driverSpec(t, root, runtime.ImageConfig{})
		c.d.SpecDirs, c.d.DevRoot = []string{dir}, t.TempDir()
		notes, err := c.d.Add(s)
		if err != nil || len(notes) > 0 {
			t.Fatalf("%s: %q, %v", c.name, notes, err)
		}
		SetSearchPaths(s)
		out, err := printed(t, s, `probe libcuda.so.1 libcuda.so libnvidia-ml.so.1 /usr/lib/nv/gbm/nvidia-drm_gbm.so; nvidia-smi; cat /run/nvidia-persistenced/socket; echo; cd /dev; for f in nvidia[0-9] nvidiactl; do test -f $f && echo -n "$f "; done; echo; echo $NVIDIA_VISIBLE_DEVICES; ls /usr/bin`)
		for _, want := range []string{"libcuda.so.1: cuInit 42\nlibcuda.so: cuInit 42\nlibnvidia-ml.so.1: loaded\n/usr/lib/nv/gbm/nvidia-drm_gbm.so: loaded\n", "the fake smi\n", "socket\n", "\n" + c.want + "\n"} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: the program ended with %v and printed\n%s\nwant %q in it", c.name, err, out, want)
			}
		}
	}
}

func TestCDIRefusals(t *testing.T) {
	for _, c := range []struct{ name, spec, want string }{
		{"an unknown field", `{"cdiVersion": "0.6.0", "kind": "v.com/c", "devices": [{"name": "a", "wish": 1}]}`, "wish"},
		{"an unknown version", fmt.Sprintf(jsonSpec, "9.0.0", "v.com/c", ""), "invalid version"},
		{"no version", `{"kind": "v.com/c", "devices": [{"name": "a"}]}`, "invalid version"},
		{"a name that needs a newer version", `{"cdiVersion": "0.4.0", "kind": "v.com/c", "devices": [{"name": "0"}]}`, "at least v0.5.0"},
		{"groups, which need a newer version", fmt.Sprintf(jsonSpec, "0.6.0", "v.com/c", `"additionalGids": [1]`), "at least v0.7.0"},
		{"no kind", fmt.Sprintf(jsonSpec, "0.6.0", "", ""), "kind"},
		{"a kind without class", fmt.Sprintf(jsonSpec, "0.6.0", "v.com", ""), "kind"},
		{"no devices", `{"cdiVersion": "0.6.0", "kind": "v.com/c"}`, "no devices"},
		{"two devices of one name", `{"cdiVersion": "0.6.0", "kind": "v.com/c", "devices": [{"name": "a"}, {"name": "a"}]}`, "twice"},
		{"an invalid name", `{"cdiVersion": "0.6.0", "kind": "v.com/c", "devices": [{"name": "a b"}]}`, "a b"},
		{"a variable without value", fmt.Sprintf(jsonSpec, "0.6.0", "v.com/c", `"env": ["X"]`), "NAME=VALUE"},
		{"a mount path with ..", fmt.Sprintf(jsonSpec, "0.6.0", "v.com/c", `"mounts": [{"hostPath": "/x", "containerPath": "/a/../../etc"}]`), "absolute containerPath"},
		{"a null device node", `{"cdiVersion": "0.6.0", "kind": "v.com/c", "devices": [{"name": "a", "containerEdits": {"deviceNodes": [null]}}]}`, "absolute paths"},
		{"a null network device", `{"cdiVersion": "1.1.0", "kind": "v.com/c", "devices": [{"name": "a", "containerEdits": {"netDevices": [null]}}]}`, "null"},
		{"a null hook", `{"cdiVersion": "1.1.0", "kind": "v.com/c", "devices": [{"name": "a"}], "containerEdits": {"hooks": [null]}}`, "absolute path"},
		{"a null mount", fmt.Sprintf(jsonSpec, "0.6.0", "v.com/c", `"mounts": [null]`), "hostPath"},
		{"a node at the root", fmt.Sprintf(jsonSpec, "0.6.0", "v.com/c", `"deviceNodes": [{"path": "/"}]`), "absolute paths"},
		{"a hook with a relative path", fmt.Sprintf(jsonSpec, "0.6.0", "v.com/c", `"hooks": [{"hookName": "poststop", "path": "x"}]`), "absolute path"},
		{"binary data", "\x00\x01", ""},
		{"a billion laughs", "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n", ""},
	} {
		if s, err := parseCDI([]byte(c.spec)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v; want an error with %q", c.name, s, err, c.want)
		}
	}
	for _, v := range []string{"0.3.0", "0.5.0", "0.8.0", "1.0.0", "v0.6.0"} {
		if _, err := parseCDI(fmt.Appendf(nil, jsonSpec, v, "v.com/c", "")); err != nil {
			t.Errorf("version %s: %v", v, err)
		}
	}
}

// TestCDIDevices checks that devices are found in all directories and problems reported.
func TestCDIDevices(t *testing.T) {
	low, high, data := t.TempDir(), t.TempDir(), t.TempDir()
	node := filepath.Join(data, "node")
	writeFile(t, node, "")
	for file, text := range map[string]string{
		low + "/a.json":  fmt.Sprintf(jsonSpec, "0.6.0", "v.com/c", `"env": ["FROM=low"]`),
		high + "/a.json": fmt.Sprintf(jsonSpec, "0.6.0", "v.com/c", `"env": ["FROM=high", "X=1"]`),
		low + "/b.json":  fmt.Sprintf(jsonSpec, "0.6.0", "v.com/twice", ""),
		low + "/c.json":  fmt.Sprintf(jsonSpec, "0.6.0", "v.com/twice", ""),
		low + "/d.json":  `{"broken`,
		low + "/e.txt":   `not read`,
		low + "/f.json":  fmt.Sprintf(jsonSpec, "0.6.0", "v.com/gone", `"deviceNodes": [{"path": "/dev/no-such-node"}]`),
		low + "/g.json":  fmt.Sprintf(jsonSpec, "0.6.0", "v.com/hook", `"hooks": [{"hookName": "createRuntime", "path": "/usr/bin/setup", "args": ["setup", "--now"]}]`),
		low + "/h.json":  fmt.Sprintf(jsonSpec, "0.7.0", "v.com/groups", `"additionalGids": [0, 44], "intelRdt": {"closID": "x"}`),
		low + "/i.json":  fmt.Sprintf(jsonSpec, "1.1.0", "v.com/net", `"netDevices": [{"hostInterfaceName": "eth7", "name": "eth0"}]`),
		low + "/j.json": fmt.Sprintf(jsonSpec, "0.6.0", "v.com/places", fmt.Sprintf(`"deviceNodes": [{"path": "/dev/other", "hostPath": %q}],
			"mounts": [{"hostPath": %q, "containerPath": "/etc/x", "options": ["ro", "rprivate"]}, {"hostPath": "none", "containerPath": "/scratch", "type": "tmpfs", "options": ["size=1m", "rprivate"]}]`, node, data)),
		low + "/k.json": fmt.Sprintf(jsonSpec, "0.6.0", "v.com/fs", `"mounts": [{"hostPath": "none", "containerPath": "/p", "type": "proc"}]`),
	} {
		writeFile(t, file, text)
	}
	for _, c := range []struct{ names, env, mounts, note, err string }{
		{"v.com/c=d0", "FROM=high X=1", "", "", ""},
		{"v.com/c=d0 v.com/c=d1 v.com/c=d0", "FROM=high X=1 D1=yes", "", "", ""},
		{"v.com/c=all", "FROM=high X=1 D1=yes", "", "", ""},
		{"v.com/groups=d0", "", "", "[0 44]", ""},
		{"v.com/places=d0", "", "bind:/dev/other:rbind bind:/etc/x:rbind,ro,rprivate tmpfs:/scratch:size=1m,rprivate", "", ""},
		{"v.com/places=d1", "D1=yes", "", "", ""},
		{"v.com/c=d9", "", "", "", "available devices are v.com/c=d0"},
		{"v.com/c=d9", "", "", "", "d.json: "},
		{"v.com/none=all", "", "", "", "no device v.com/none=all"},
		{"v.com/twice=d0", "", "", "", "remove one of them"},
		{"v.com/gone=d0", "", "", "", `refers to "/dev/no-such-node", which`},
		{"v.com/gone=d1", "D1=yes", "", "", ""},
		{"v.com/hook=d0", "", "", "", "the hook /usr/bin/setup setup --now"},
		{"v.com/net=d0", "", "", "", "network device \"eth7\""},
		{"v.com/fs=d0", "", "", "", "mounts a proc"},
		{"nvidia0", "", "", "", "write vendor.com/class=name"},
		{"/dev/dri", "", "", "", "write vendor.com/class=name"},
	} {
		s := driverSpec(t, t.TempDir(), runtime.ImageConfig{})
		s.Process.Env = nil
		before := len(s.Mounts)
		notes, err := Request{Names: strings.Fields(c.names), SpecDirs: []string{low, high, "/no/such/dir"}}.Add(s)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v; want %q", c.names, err, c.err)
			}
			continue
		}
		var mounts []string
		for _, m := range s.Mounts[before:] {
			mounts = append(mounts, m.Type+":"+m.Destination+":"+strings.Join(m.Options, ","))
		}
		if err != nil || strings.Join(s.Process.Env, " ") != c.env || strings.Join(mounts, " ") != c.mounts || (len(notes) > 0) != (c.note != "") || !strings.Contains(strings.Join(notes, "\n"), c.note) {
			t.Errorf("%s: %q, %q, %q, %v", c.names, s.Process.Env, mounts, notes, err)
		}
	}
}

// TestStaleCDI checks that a spec for another driver does not stop --gpu.
func TestStaleCDI(t *testing.T) {
	unsetGPUVariables(t)
	driver, dir := fakeDriver(t), t.TempDir()
	writeFile(t, filepath.Join(dir, "nvidia.yaml"), fmt.Sprintf(yamlSpec, "/no/such/driver"))
	s := driverSpec(t, t.TempDir(), runtime.ImageConfig{})
	notes, err := Request{GPU: true, SpecDirs: []string{dir}, DriverRoot: driver, DevRoot: driver}.Add(s)
	if err != nil || len(notes) == 0 || !strings.Contains(notes[0], "is not used") || !slices.Contains(listing(s, "/run/hpcc/lib"), "libcuda.so.1") {
		t.Errorf("%q, %v, %q", notes, err, listing(s, "/run/hpcc/lib"))
	}
}

func FuzzParseCDI(f *testing.F) {
	f.Add([]byte(fmt.Sprintf(yamlSpec, "/drv")))
	f.Add([]byte(fmt.Sprintf(jsonSpec, "0.6.0", "v.com/c", `"env": ["A=1"], "mounts": [{"hostPath": "/x", "containerPath": "/y"}]`)))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte(`{"cdiVersion": "1.1.0", "kind": "v.com/c", "devices": [{"name": "a"}], "containerEdits": {"hooks": [null], "netDevices": [null], "mounts": [null], "deviceNodes": [null]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseCDI(b)
		if err != nil {
			return
		}
		for _, d := range s.Devices {
			for _, e := range cdiEdits([]*cdiDevice{{name: d.Name, spec: s, dev: &d}}) {
				for _, m := range e.Mounts {
					if !isMountPoint(m.ContainerPath) {
						t.Errorf("a mount at %q", m.ContainerPath)
					}
				}
				for _, n := range e.DeviceNodes {
					if !isMountPoint(n.Path) {
						t.Errorf("a node at %q", n.Path)
					}
				}
				for _, k := range e.Hooks {
					hookAction(k)
					hookValues(k.Args, "link")
				}
			}
		}
	})
}
