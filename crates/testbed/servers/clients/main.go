// Command go-client takes a slot of a semaphore, or a lock, by Consul's own Go client: again and
// again, as any program that uses it would.
//
//	go-client semaphore -prefix P -limit N [flags]
//	go-client lock -key K [flags]
//	go-client forward ADDRESS CONFIGURATION
//
// Each round is a line when it is granted and one when it is released:
//
//	granted 3 after 12 ms
//	released 3
//
// Whatever else the client says is a line that starts with "error" or "lost", and ends the program
// with status 1. TERM and INT end it after the release of what it holds. Where Consul is, and the
// token, is read from the environment as by all of Consul's tools.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hashicorp/consul/api"
)

// taker is what the two kinds have in common. The channel that acquire answers is closed when what
// was granted is lost; it is nil when the wait was ended by stop.
type taker struct {
	acquire func(stop <-chan struct{}) (<-chan struct{}, error)
	release func() error
}

var (
	flags   = flag.NewFlagSet("go-client", flag.ExitOnError)
	prefix  = flags.String("prefix", "", "the semaphore's prefix")
	limit   = flags.Int("limit", 1, "the semaphore's limit")
	key     = flags.String("key", "", "the lock's key")
	value   = flags.String("value", "", "what the contender key, or the lock's, is to say")
	hold    = flags.Duration("hold", 0, "how long each grant is held")
	rest    = flags.Duration("rest", 0, "how long it waits before it asks again")
	times   = flags.Int("times", 1, "how many grants; 0: until it is told to end")
	session = flags.String("session", "go-client", "the name of its sessions")
)

func main() {
	if err := run(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) < 2 {
		return errors.New("error: go-client semaphore | lock | forward")
	}
	if os.Args[1] == "forward" && len(os.Args) == 4 {
		return forward(os.Args[2], os.Args[3])
	}
	if err := flags.Parse(os.Args[2:]); err != nil {
		return err
	}
	taker, err := take(os.Args[1])
	if err != nil {
		return fmt.Errorf("error: %w", err)
	}
	stop := stopped()
	for round := 1; *times == 0 || round <= *times; round++ {
		if done, err := taker.once(round, stop); done || err != nil {
			return err
		}
	}
	return nil
}

func take(kind string) (taker, error) {
	client, err := api.NewClient(api.DefaultConfig())
	if err != nil {
		return taker{}, err
	}
	switch kind {
	case "semaphore":
		semaphore, err := client.SemaphoreOpts(&api.SemaphoreOptions{
			Prefix: *prefix, Limit: *limit, Value: []byte(*value), SessionName: *session,
		})
		if err != nil {
			return taker{}, err
		}
		return taker{semaphore.Acquire, semaphore.Release}, nil
	case "lock":
		lock, err := client.LockOpts(&api.LockOptions{
			Key: *key, Value: []byte(*value), SessionName: *session,
		})
		if err != nil {
			return taker{}, err
		}
		return taker{lock.Lock, lock.Unlock}, nil
	}
	return taker{}, fmt.Errorf("%s is neither semaphore nor lock", kind)
}

// once is one grant and its release. It says whether it was told to end meanwhile.
func (t taker) once(round int, stop <-chan struct{}) (bool, error) {
	asked := time.Now()
	lost, err := t.acquire(stop)
	if err != nil {
		return false, fmt.Errorf("error: acquire %d: %w", round, err)
	}
	if lost == nil {
		return true, nil
	}
	fmt.Printf("granted %d after %d ms\n", round, time.Since(asked).Milliseconds())
	done := false
	select {
	case <-lost:
		return false, fmt.Errorf("lost %d", round)
	case <-stop:
		done = true
	case <-time.After(*hold):
	}
	if err := t.release(); err != nil {
		return false, fmt.Errorf("error: release %d: %w", round, err)
	}
	fmt.Printf("released %d\n", round)
	select {
	case <-stop:
		done = true
	case <-time.After(*rest):
	}
	return done, nil
}

// stopped is closed at the first TERM or INT.
func stopped() <-chan struct{} {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	stop := make(chan struct{})
	go func() {
		<-signals
		close(stop)
	}()
	return stop
}
