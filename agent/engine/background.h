// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace mapgate::engine {

// Runs `work` on `pool`, and goes on in the caller's loop with what it returns. `work` must not use
// what the loop uses meanwhile, nor throw.
template <typename Work, typename Result = std::invoke_result_t<Work&>>
boost::asio::awaitable<Result> run_in_background(boost::asio::thread_pool& pool, Work work) {
  namespace asio = boost::asio;
  auto initiate = [&pool, &work](auto handler) {
    auto shared = std::make_shared<decltype(handler)>(std::move(handler));
    const auto executor = asio::get_associated_executor(*shared);
    asio::post(pool, [shared, executor, guard = asio::make_work_guard(executor),
                      work = std::move(work)]() mutable {
      auto result = std::make_shared<Result>(work());
      asio::post(executor,
                 [shared = std::move(shared), result] { std::move (*shared)(std::move(*result)); });
    });
  };
  co_return co_await asio::async_initiate<const asio::use_awaitable_t<>, void(Result)>(
      std::move(initiate), asio::use_awaitable);
}

}  // namespace mapgate::engine
