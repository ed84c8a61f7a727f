package job

// Rules are what schedulers leave to each site. Jobs carry those of the site that
// they were stated for.
type Rules struct {
	OneHost   string   `json:"pe_one_host,omitempty" toml:"pe_one_host"` // parallel environment for slots of one host; "" is smp
	ManyHosts string   `json:"pe_many,omitempty" toml:"pe_many"`         // for slots of any hosts; "" is mpi
	Memory    []string `json:"memory,omitempty" toml:"memory"`           // resources that --mem asks for; none is mem_free
	MemoryPer string   `json:"memory_per,omitempty" toml:"memory_per"`   // what an amount is of: slot, job or host
	GPU       string   `json:"gpu,omitempty" toml:"gpu"`                 // resource that --gpus asks for; "" is the usual one
	GPUPer    string   `json:"gpu_per,omitempty" toml:"gpu_per"`         // what an amount is of: slot or job
}
