/* SPDX-License-Identifier: MIT
 *
 * A C++ program with 200 threads that wait for work in different ways. Exceptions are thrown
 * through frames that were on the stack at the dump, so unwinding must find all of its tables
 * again.
 */
#include "victim.h"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>

namespace
{

constexpr unsigned WORKERS = 200, SLEEPERS = 8;
using namespace std::chrono_literals;

/* What each thread has of its own: built on first use, and never again. */
struct Own {
	static std::atomic<unsigned> built;
	unsigned long seed, steps = 0;
	explicit Own(unsigned long s) : seed(s)
	{
		built++;
	}
	~Own()
	{
		built--;
	}
};
std::atomic<unsigned> Own::built{ 0 };
thread_local std::unique_ptr<Own> own;

class Refusal : public std::runtime_error
{
      public:
	Refusal(unsigned long w, std::string text) : std::runtime_error(std::move(text)), word(w)
	{
	}
	unsigned long word;
};

/* Counts the frames that unwinding has left in order. */
struct Guard {
	unsigned &left;
	explicit Guard(unsigned &count) : left(count)
	{
	}
	~Guard()
	{
		left++;
	}
};

__attribute__((noinline)) void throw_below(unsigned depth, unsigned long word, unsigned &left)
{
	Guard guard(left);
	if (depth == 0)
		throw Refusal(word, "word " + std::to_string(word));
	throw_below(depth - 1, word, left);
	left += 1000; /* never reached; keeps the frame */
}

/* Rounds: everybody does one piece of work a round and says so. */
class Rounds
{
      public:
	void work(unsigned number)
	{
		own = std::make_unique<Own>(number);
		for (unsigned long round = 1;; round++) {
			try {
				wait_and_throw(number, round);
			} catch (const Refusal &refusal) {
				finish(number, round, refusal);
			}
		}
	}

	void run()
	{
		std::unique_lock lock(mutex);
		wanted++;
		left = WORKERS;
		begun.notify_all();
		if (!done.wait_for(lock, 100s, [this] { return left == 0; }))
			victim_fail("%u threads do nothing in round %lu", left, wanted);
		for (unsigned i = 0; i < WORKERS; i++) {
			unsigned long word = victim_word(i, wanted);
			CHECK(words[i] == word, "thread %u has %lx, not %lx", i, words[i], word);
		}
		CHECK(complaint.empty(), "%s", complaint.c_str());
	}

      private:
	/* The wait is inside of the try block and below a frame with a destructor. */
	void wait_and_throw(unsigned number, unsigned long round)
	{
		unsigned frames = 0;
		std::unique_lock lock(mutex);
		/* some wait with a time limit: another futex call to resume */
		if (number % 2)
			while (!begun.wait_for(lock, 1h, [&] { return wanted >= round; }))
				;
		else
			begun.wait(lock, [&] { return wanted >= round; });
		lock.unlock();
		own->steps++;
		try {
			throw_below(number % 30, victim_word(own->seed, own->steps), frames);
		} catch (Refusal &refusal) {
			if (frames != number % 30 + 1)
				complain("unwinding left " + std::to_string(frames) + " frames");
			throw;
		}
	}

	void finish(unsigned number, unsigned long round, const Refusal &refusal)
	{
		if (refusal.what() != "word " + std::to_string(refusal.word))
			complain(refusal.what());
		if (own->steps != round)
			complain("a thread's own count is " + std::to_string(own->steps));
		std::lock_guard lock(mutex);
		words[number] = refusal.word;
		if (--left == 0)
			done.notify_one();
	}

	void complain(std::string text)
	{
		std::lock_guard lock(mutex);
		if (complaint.empty())
			complaint = std::move(text);
	}

	std::mutex mutex;
	std::condition_variable begun, done;
	unsigned long wanted = 0;
	unsigned left = 0;
	std::array<unsigned long, WORKERS> words{};
	std::string complaint;
};

/* Readers and writers of one map, always at it. */
class Table
{
      public:
	void beat(unsigned number)
	{
		for (unsigned long n = 1;; n++) {
			auto begin = std::chrono::steady_clock::now();
			std::this_thread::sleep_for(5ms);
			if (std::chrono::steady_clock::now() - begin < 5ms)
				early++;
			std::unique_lock lock(mutex);
			counts["sleeper " + std::to_string(number)] = n;
		}
	}

	unsigned long sum()
	{
		std::shared_lock lock(mutex);
		unsigned long all = 0;
		for (const auto &[name, count] : counts)
			all += count;
		return all;
	}

	std::atomic<unsigned> early{ 0 };

      private:
	std::shared_mutex mutex;
	std::map<std::string, unsigned long> counts;
};

Rounds rounds;
Table table;
std::promise<unsigned long> promise;
std::future<unsigned long> kept;

/* A thread that waits for a number and keeps a promise of its square. */
void promise_square()
{
	promise = {};
	kept = std::async(std::launch::async, [answer = promise.get_future()]() mutable {
		unsigned long n = answer.get();
		return n * n;
	});
}

/* The thread from before the dump keeps it after; then a new one is begun. */
void check_future()
{
	static unsigned long number = 0;
	promise.set_value(++number);
	unsigned long got = kept.get();
	CHECK(got == number * number, "a promise of %lu gave %lu", number, got);
	promise_square();
}

/* A joined thread may be listed for a moment longer. */
void check_threads()
{
	constexpr unsigned all = WORKERS + SLEEPERS + 2;
	long long threads = 0;
	for (int i = 0; i < 1000 && threads != all; i++) {
		std::this_thread::sleep_for(10ms);
		threads = victim_status(getpid(), "Threads", 10);
	}
	CHECK(threads == all, "%lld threads", threads);
}

void check()
{
	rounds.run();
	CHECK(Own::built == WORKERS, "%u thread_local objects", Own::built.load());
	unsigned long before = table.sum();
	for (int i = 0; i < 30000 && table.sum() == before; i++)
		std::this_thread::sleep_for(1ms);
	CHECK(table.sum() > before, "the sleepers have stopped");
	CHECK(table.early == 0, "%u sleeps were short", table.early.load());
	check_future();
	check_threads();
}

} // namespace

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	for (unsigned i = 0; i < WORKERS; i++)
		std::thread(&Rounds::work, &rounds, i).detach();
	for (unsigned i = 0; i < SLEEPERS; i++)
		std::thread(&Table::beat, &table, i).detach();
	promise_square();
	victim_ready();
	victim_serve(check);
}
