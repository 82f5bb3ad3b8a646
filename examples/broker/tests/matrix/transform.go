// franz-go as a program that tests kill: see examples/broker/tests/test_exactly_once.py.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	ctx := context.Background()
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(os.Args[1]),
		kgo.TransactionalID("transform"),
		kgo.ConsumerGroup("transform"),
		kgo.ConsumeTopics("in"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.SessionTimeout(2*time.Second),
		kgo.HeartbeatInterval(300*time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		log.Fatal(err)
	}
	// It ends the transaction of its killed predecessor, whose offsets must be known before records
	// are read.
	if _, _, err := session.Client().ProducerID(ctx); err != nil {
		log.Fatal(err)
	}
	for {
		fetches := session.PollRecords(ctx, 10)
		if fetches.NumRecords() > 0 {
			fmt.Println("transaction")
			transform(ctx, session, fetches)
		}
	}
}

func transform(ctx context.Context, session *kgo.GroupTransactSession, fetches kgo.Fetches) {
	if err := session.Begin(); err != nil {
		log.Fatal(err)
	}
	first := kgo.AbortingFirstErrPromise(session.Client())
	fetches.EachRecord(func(record *kgo.Record) {
		number, err := strconv.Atoi(string(record.Value))
		if err != nil {
			log.Fatal(err)
		}
		session.Produce(ctx, &kgo.Record{Topic: "out", Partition: int32(number % 2), Value: record.Value}, first.Promise())
	})
	if err := session.Client().Flush(ctx); err != nil {
		log.Fatal(err)
	}
	committed, err := session.End(ctx, first.Err() == nil)
	if err != nil {
		log.Fatal(err)
	}
	if !committed {
		log.Print("aborted")
	}
}
