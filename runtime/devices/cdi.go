package devices

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"go.yaml.in/yaml/v3"
	"tags.cncf.io/container-device-interface/pkg/parser"
	cdi "tags.cncf.io/container-device-interface/specs-go"
)

// Specs of the Container Device Interface state what a run needs for a device:
// https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md. Its library reads
// specs of any size, waits for a FIFO, and dereferences null entries of a spec, so hpcc
// imports only its types and its name parser.

// standardSpecDirs are the default directories of specs. Devices in later ones take
// precedence.
var standardSpecDirs = []string{"/etc/cdi", "/var/run/cdi"}

// maxSpec bounds the size of a spec and maxSpecs their number. Real specs have a
// few tens of KiB.
const (
	maxSpec  = 4 << 20
	maxSpecs = 1000
)

// parseCDI parses one spec in YAML or JSON. It refuses unknown fields, because a device may
// not work without the edits that they hold.
func parseCDI(b []byte) (*cdi.Spec, error) {
	var s cdi.Spec
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&s); err != nil && err != io.EOF {
		return nil, err
	}
	vendor, class := parser.ParseQualifier(s.Kind)
	if err := errors.Join(parser.ValidateVendorName(vendor), parser.ValidateClassName(class)); err != nil {
		return nil, fmt.Errorf("kind %q: %w", s.Kind, err)
	}
	if len(s.Devices) == 0 {
		return nil, errors.New("the spec defines no devices")
	}
	if err := checkEdits(&s.ContainerEdits); err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for i := range s.Devices {
		d := &s.Devices[i]
		if err := parser.ValidateDeviceName(d.Name); err != nil {
			return nil, err
		}
		if seen[d.Name] {
			return nil, fmt.Errorf("device %q is defined twice", d.Name)
		}
		seen[d.Name] = true
		if err := checkEdits(&d.ContainerEdits); err != nil {
			return nil, fmt.Errorf("device %q: %w", d.Name, err)
		}
	}
	// Validation comes last, because it dereferences the pointers of the edits.
	if err := cdi.ValidateVersion(&s); err != nil {
		return nil, err
	}
	return &s, nil
}

// checkEdits returns an error for invalid edits.
func checkEdits(e *cdi.ContainerEdits) error {
	for _, v := range e.Env {
		if name, _, ok := strings.Cut(v, "="); !ok || name == "" || strings.Contains(v, "\x00") {
			return fmt.Errorf("env %q is not NAME=VALUE", v)
		}
	}
	for _, n := range e.DeviceNodes {
		if n == nil || !isMountPoint(n.Path) || (n.HostPath != "" && !isMountPoint(n.HostPath)) {
			return fmt.Errorf("device node %+v needs absolute paths", n)
		}
	}
	for _, m := range e.Mounts {
		if m == nil || !isMountPoint(m.ContainerPath) || (isBind(m) && !isMountPoint(m.HostPath)) {
			return fmt.Errorf("mount %+v needs an absolute containerPath and, for a bind, hostPath", m)
		}
	}
	for _, h := range e.Hooks {
		if h == nil || h.HookName == "" || !filepath.IsAbs(h.Path) {
			return fmt.Errorf("hook %+v needs a name and an absolute path", h)
		}
	}
	if slices.Contains(e.NetDevices, nil) {
		return errors.New("a network device is null")
	}
	return nil
}

// isMountPoint reports whether p is a valid path for a mount: absolute, without "..", and not
// the root.
func isMountPoint(p string) bool {
	return filepath.IsAbs(p) && filepath.Clean(p) != "/" && !strings.Contains(p+"/", "/../") &&
		!strings.Contains(p, "\x00") && len(p) < maxPath
}

// A cdiDevice is a device together with its spec, whose edits apply to all its devices.
type cdiDevice struct {
	name      string // qualified
	spec      *cdi.Spec
	dev       *cdi.Device
	file      string
	duplicate string // another file in the same directory that defines the device; or ""
}

// cdiRegistry holds the devices of all specs.
type cdiRegistry struct {
	dirs     []string
	devices  map[string]*cdiDevice // by qualified name
	order    []string
	problems []string // files that could not be used
}

// readCDI reads the specs in dirs. A missing directory counts as empty. find reports
// invalid files only if a device is not found.
func readCDI(dirs []string) *cdiRegistry {
	if len(dirs) == 0 {
		dirs = standardSpecDirs
	}
	r := &cdiRegistry{dirs: dirs, devices: map[string]*cdiDevice{}}
	for _, dir := range dirs {
		names, err := readNames(dir)
		if err != nil {
			continue
		}
		names = slices.DeleteFunc(names, func(n string) bool { return filepath.Ext(n) != ".json" && filepath.Ext(n) != ".yaml" })
		if len(names) > maxSpecs {
			r.problems = append(r.problems, fmt.Sprintf("%s has %d specs; only %d are read", dir, len(names), maxSpecs))
			names = names[:maxSpecs]
		}
		for _, n := range names {
			r.read(filepath.Join(dir, n))
		}
	}
	return r
}

func (r *cdiRegistry) read(file string) {
	b, err := readBounded(file, maxSpec)
	var s *cdi.Spec
	if err == nil {
		s, err = parseCDI(b)
	}
	if err != nil {
		r.problems = append(r.problems, fmt.Sprintf("%s: %v", file, err))
		return
	}
	for i := range s.Devices {
		d := &cdiDevice{name: s.Kind + "=" + s.Devices[i].Name, spec: s, dev: &s.Devices[i], file: file}
		switch old := r.devices[d.name]; {
		case old == nil:
			r.order = append(r.order, d.name)
		case filepath.Dir(old.file) == filepath.Dir(file):
			d.duplicate = old.file
		}
		r.devices[d.name] = d
	}
}

// splitName splits the qualified name of a device.
func splitName(name string) (vendor, class, device string, err error) {
	if vendor, class, device, err = parser.ParseQualifiedName(name); err != nil {
		err = fmt.Errorf("reading device %q: %w; write vendor.com/class=name", name, err)
	}
	return vendor, class, device, err
}

// find returns the devices that a name on the command line refers to. If no device is called
// "all", that name refers to every device of the kind.
func (r *cdiRegistry) find(name string) ([]*cdiDevice, error) {
	vendor, class, dev, err := splitName(name)
	if err != nil {
		return nil, err
	}
	kind := vendor + "/" + class
	var found []*cdiDevice
	if d := r.devices[name]; d != nil {
		found = append(found, d)
	} else if dev == "all" {
		for _, n := range r.order {
			if r.devices[n].spec.Kind == kind {
				found = append(found, r.devices[n])
			}
		}
	}
	for _, d := range found {
		if d.duplicate != "" {
			return nil, fmt.Errorf("device %s is defined in %s and in %s: remove one of them", d.name, d.duplicate, d.file)
		}
	}
	if len(found) > 0 {
		return found, nil
	}
	why := "the specs define no devices"
	if len(r.order) > 0 {
		why = "available devices are " + strings.Join(r.order, ", ")
	}
	for _, p := range r.problems {
		why += "\n" + p
	}
	return nil, fmt.Errorf("no device %s in the CDI specs of %s: %s", name, strings.Join(r.dirs, " and "), why)
}

// addNamed gives the run the devices that were requested by name.
func (d Request) addNamed(h *hardware) error {
	r := readCDI(d.SpecDirs)
	var found []*cdiDevice
	for _, n := range d.Names {
		ds, err := r.find(n)
		if err != nil {
			return err
		}
		found = append(found, ds...)
	}
	return h.addCDI(found)
}

// cdiEdits returns the edits of some devices. The edits of each spec appear once, before
// those of its devices.
func cdiEdits(devices []*cdiDevice) []*cdi.ContainerEdits {
	var edits []*cdi.ContainerEdits
	add := func(e *cdi.ContainerEdits) {
		if !slices.Contains(edits, e) {
			edits = append(edits, e)
		}
	}
	for _, d := range devices {
		add(&d.spec.ContainerEdits)
		add(&d.dev.ContainerEdits)
	}
	return edits
}

// missingCDI returns the first file that the edits name and the host does not have.
func missingCDI(edits []*cdi.ContainerEdits) string {
	for _, e := range edits {
		for _, n := range e.DeviceNodes {
			if p := hostNode(n); !exists(p) {
				return p
			}
		}
		for _, m := range e.Mounts {
			if isBind(m) && !exists(m.HostPath) {
				return m.HostPath
			}
		}
	}
	return ""
}

func hostNode(n *cdi.DeviceNode) string {
	if n.HostPath != "" {
		return n.HostPath
	}
	return n.Path
}

// isBind reports whether a mount is a bind of a host path. The OCI runtime specification
// identifies binds by their options; the type is a dummy.
func isBind(m *cdi.Mount) bool {
	return m.Type == "" || m.Type == "none" || m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
}

// addCDI applies the edits of the devices to the run.
func (h *hardware) addCDI(devices []*cdiDevice) error {
	edits := cdiEdits(devices)
	if p := missingCDI(edits); p != "" {
		return fmt.Errorf("%s refers to %q, which does not exist: the driver has changed, or the spec is for another machine; regenerate the spec (nvidia-ctk cdi generate)", devices[0].file, p)
	}
	hooks, err := h.readHooks(edits)
	if err != nil {
		return fmt.Errorf("adding %s of %s: %w", devices[0].name, devices[0].file, err)
	}
	for _, e := range edits {
		if err := h.addEdits(e, hooks); err != nil {
			return fmt.Errorf("adding %s of %s: %w", devices[0].name, devices[0].file, err)
		}
	}
	h.addLinks(hooks)
	return nil
}

// addEdits applies edits, except their hooks.
func (h *hardware) addEdits(e *cdi.ContainerEdits, hooks *cdiHooks) error {
	if len(e.NetDevices) > 0 {
		return fmt.Errorf("the spec moves network device %q, which only root may do", e.NetDevices[0].HostInterfaceName)
	}
	for _, v := range e.Env {
		name, value, _ := strings.Cut(v, "=")
		h.setEnv(name, value)
	}
	// A device node keeps the host's device number, owner and mode, because an ordinary user can
	// neither create nor change one.
	for _, n := range e.DeviceNodes {
		h.addBind(hostNode(n), filepath.Clean(n.Path))
	}
	for _, m := range e.Mounts {
		if err := h.addMount(m, hooks); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(e.AdditionalGIDs, func(g uint32) bool { return g != 0 }) {
		h.note("the additional groups %v of a CDI spec are not applied: a user has only the groups that the host assigns", e.AdditionalGIDs)
	}
	if e.IntelRdt != nil {
		h.note("the cache and memory bandwidth settings (intelRdt) of a CDI spec are left to the administrator")
	}
	return nil
}

// programDirs are the usual directories of programs. Programs that a spec mounts there go to
// the private directory instead.
var programDirs = []string{"/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin"}

// addMount adds a mount of a spec. Libraries that a hook would announce to the loader, and
// programs that the image lacks, go to the private directory. At their own paths they would
// be costly: adding a name to a read-only directory needs a mount for each of its entries.
func (h *hardware) addMount(m *cdi.Mount, hooks *cdiHooks) error {
	if !isBind(m) {
		if m.Type != "tmpfs" {
			return fmt.Errorf("the spec mounts a %s at %s; hpcc mounts only tmpfs, and files and directories of the host", m.Type, m.ContainerPath)
		}
		h.mounts = append(h.mounts, specs.Mount{Destination: filepath.Clean(m.ContainerPath),
			Type: "tmpfs", Source: "tmpfs", Options: m.Options})
		return nil
	}
	dst := filepath.Clean(m.ContainerPath)
	dir, name := filepath.Split(dst)
	dir = filepath.Clean(dir)
	if slices.Contains(hooks.folders, dir) && strings.HasPrefix(name, "lib") && strings.Contains(name, ".so") {
		_, err := h.addLibrary(name, m.HostPath)
		if errors.Is(err, errNewerGlibc) {
			h.note("a library of a CDI spec is left out: %v", err)
		}
		return nil // a library for another architecture is skipped
	}
	if slices.Contains(programDirs, dir) && !isDir(m.HostPath) && !h.inImage(dst) {
		h.programs[name] = m.HostPath
		return nil
	}
	b := bind(m.HostPath, dst)
	b.Options = append(b.Options, m.Options...)
	h.mounts = append(h.mounts, b)
	return nil
}

// cdiHooks holds the effects of hooks, which expect an OCI runtime that runs them as root.
type cdiHooks struct {
	folders []string    // directories for the loader's search path
	links   [][2]string // pairs of target and link
}

// readHooks collects the effects of the edits' hooks. hpcc implements hooks that configure the
// loader or create links itself. It ignores hooks that change modes or keep root from creating
// device nodes, which are not needed, and refuses all others.
func (h *hardware) readHooks(edits []*cdi.ContainerEdits) (*cdiHooks, error) {
	x := &cdiHooks{}
	for _, e := range edits {
		for _, k := range e.Hooks {
			switch hookAction(k) {
			case "update-ldcache":
				for _, f := range hookValues(k.Args, "folder") {
					x.folders = append(x.folders, filepath.Clean(f))
				}
			case "create-symlinks":
				for _, l := range hookValues(k.Args, "link") {
					target, link, ok := strings.Cut(l, "::")
					if !ok || target == "" || !isMountPoint(link) {
						return nil, fmt.Errorf("hook create-symlinks: %q is not TARGET::LINK", l)
					}
					x.links = append(x.links, [2]string{target, filepath.Clean(link)})
				}
			case "chmod", "disable-device-node-modification":
			case "enable-cuda-compat":
				h.note("the image's CUDA compatibility libraries, if it has any, do not take precedence over the driver's")
			default:
				return nil, fmt.Errorf("the spec needs the hook %s %s, which hpcc does not run, because hooks expect a runtime with root privileges", k.Path, strings.Join(k.Args, " "))
			}
		}
	}
	return x, nil
}

// hookAction returns the action of one of NVIDIA's hooks, which is its first argument. For
// other hooks it returns "".
func hookAction(k *cdi.Hook) string {
	tool := filepath.Base(k.Path)
	if (tool != "nvidia-ctk" && tool != "nvidia-cdi-hook") || len(k.Args) < 2 {
		return ""
	}
	if k.Args[1] == "hook" && len(k.Args) > 2 {
		return k.Args[2]
	}
	return k.Args[1]
}

// hookValues returns the values of the option name in args: --name VALUE or --name=VALUE.
func hookValues(args []string, name string) []string {
	var out []string
	for i, a := range args {
		a = strings.TrimLeft(a, "-")
		if v, ok := strings.CutPrefix(a, name+"="); ok {
			out = append(out, v)
		} else if a == name && i+1 < len(args) {
			out = append(out, args[i+1])
		}
	}
	return out
}

// addLinks adds libraries under the names of links to them. A link may point to another link,
// so addLinks repeats until it adds nothing more.
func (h *hardware) addLinks(hooks *cdiHooks) {
	todo := slices.Clone(hooks.links)
	for added := true; added; {
		added = false
		todo = slices.DeleteFunc(todo, func(l [2]string) bool {
			file, ok := h.libs[filepath.Base(l[0])]
			if !ok {
				return false
			}
			added = true
			if dir, name := filepath.Split(l[1]); slices.Contains(hooks.folders, filepath.Clean(dir)) {
				if _, ok := h.libs[name]; !ok {
					h.libs[name] = file
				}
				return true
			}
			h.addBind(file, l[1])
			return true
		})
	}
}

// has reports whether there is a device of the kind.
func (r *cdiRegistry) has(kind string) bool {
	for _, d := range r.devices {
		if d.spec.Kind == kind {
			return true
		}
	}
	return false
}
