package main
import ("testing";"os";"context";"hpcc/store";"hpcc/unpack";"path/filepath")
func BenchmarkUnpack(b *testing.B){
 s,err:=store.Open("/dev/shm/inflate/st"); if err!=nil{b.Fatal(err)}
 img,err:=s.Get(os.Getenv("IMG"),nil); if err!=nil{b.Fatal(err)}
 for b.Loop(){ d:=filepath.Join("/dev/shm/inflate","bx"); os.RemoveAll(d)
 if _,err:=unpack.Image(context.Background(),img,d,unpack.Options{});err!=nil{b.Fatal(err)}}
 os.RemoveAll("/dev/shm/inflate/bx")
}
