//! What a limit counts, and what a request has used of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use attache_proto::{TokenUse, Usage};

use super::CostProgram;
use super::estimate::Estimate;

/// What a limit counts. Its unit is what counters and amounts of the limit are in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Quantity {
    /// Tokens of the answer's usage.
    Tokens(Cost),
    /// What an expression makes of the usage, in thousandths.
    Weighted(Arc<CostProgram>),
    /// What the tokens cost, in millionths of the currency that the prices are in.
    Money(Arc<Prices>),
    /// Requests.
    Requests,
    /// Requests in flight.
    Concurrency,
}

impl Quantity {
    /// How many units of counting make one of what people read: 1,000 for weighted tokens, 1,000,000 for money.
    pub fn scale(&self) -> u64 {
        match self {
            Self::Tokens(_) | Self::Requests | Self::Concurrency => 1,
            Self::Weighted(_) => 1_000,
            Self::Money(_) => 1_000_000,
        }
    }

    /// The same, of the limit of that id: what goes wrong in counting is said to be its.
    #[must_use]
    pub fn of_limit(self, id: &Arc<str>) -> Self {
        match self {
            Self::Weighted(program) => Self::Weighted(Arc::new(CostProgram::clone(&program).of_limit(id))),
            other => other,
        }
    }

    /// Whether a request that may use these tokens can use any of this. A limit has no say in one that cannot, also when it is
    /// used up.
    pub fn is_used_by(&self, tokens: TokenUse, context: &CostContext) -> bool {
        match (self, tokens) {
            (Self::Requests | Self::Concurrency, _) | (_, TokenUse::InputAndOutput) => true,
            (Self::Tokens(cost), TokenUse::Input) => !matches!(cost, Cost::Output | Cost::Reasoning),
            (Self::Weighted(_) | Self::Money(_), TokenUse::Input) => true,
            (Self::Tokens(_) | Self::Money(_), TokenUse::None) => false,
            // An expression may count requests as well.
            (Self::Weighted(program), TokenUse::None) => program.expected_cost(&Usage::default(), context) > 0,
        }
    }

    /// What a request has used of this once the model has used `usage`.
    pub fn actual(&self, usage: &Usage, context: &CostContext) -> u64 {
        match self {
            Self::Tokens(cost) => cost.of(usage),
            Self::Weighted(program) => program.cost(usage, context),
            Self::Money(prices) => prices.of(&context.served_model).cost(usage),
            Self::Requests => 1,
            Self::Concurrency => 0,
        }
    }

    /// What a request will probably use of this.
    pub fn estimate(&self, estimate: &Estimate, context: &CostContext) -> u64 {
        match self {
            Self::Requests | Self::Concurrency => 1,
            Self::Weighted(program) => program.expected_cost(&estimate.usage(), context),
            // Whether the upstream has the prompt cached, or the model reasons, cannot be known from the request.
            Self::Tokens(_) | Self::Money(_) => self.actual(&estimate.usage(), context),
        }
    }
}

/// What a cost may depend on besides the usage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CostContext {
    /// The model asked for.
    pub model: Arc<str>,
    /// The model that serves.
    pub served_model: Arc<str>,
    /// `namespace/name` of the AIServiceBackend.
    pub backend: Arc<str>,
    /// `namespace/name` of the route.
    pub route: Arc<str>,
}

/// Which tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// Prompt tokens.
    Input,
    /// Completion tokens.
    Output,
    /// All of them.
    Total,
    /// Prompt tokens that came from the upstream's cache.
    CachedInput,
    /// Prompt tokens written to the upstream's cache.
    CacheCreationInput,
    /// Completion tokens spent on reasoning.
    Reasoning,
}

impl Cost {
    /// The tokens of this kind in `usage`.
    pub fn of(self, usage: &Usage) -> u64 {
        match self {
            Self::Input => usage.input,
            Self::Output => usage.output,
            Self::Total => usage.total,
            Self::CachedInput => usage.cached_input,
            Self::CacheCreationInput => usage.cache_creation_input,
            Self::Reasoning => usage.reasoning,
        }
    }
}

/// Prices by the name of the model that serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prices {
    /// One entry a model.
    pub by_model: BTreeMap<Arc<str>, Price>,
    /// For every other model. Where the operator gives none it is the dearest of all, so that no model is free because
    /// nobody thought of it.
    pub other: Price,
}

impl Prices {
    /// The price of a model.
    pub fn of(&self, model: &str) -> &Price {
        self.by_model.get(model).unwrap_or(&self.other)
    }
}

/// What a million tokens cost, in millionths of the currency: 2.50 is 2,500,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Price {
    /// Prompt tokens that were neither read from a cache nor written to one.
    pub input: u64,
    /// Completion tokens, reasoning included.
    pub output: u64,
    /// Prompt tokens read from the upstream's cache.
    pub cached_input: u64,
    /// Prompt tokens written to the upstream's cache.
    pub cache_creation_input: u64,
}

impl Price {
    /// What `usage` costs, in millionths of the currency, rounded up.
    pub fn cost(&self, usage: &Usage) -> u64 {
        let plain = usage.input.saturating_sub(usage.cached_input).saturating_sub(usage.cache_creation_input);
        let parts = [
            (plain, self.input),
            (usage.output, self.output),
            (usage.cached_input, self.cached_input),
            (usage.cache_creation_input, self.cache_creation_input),
        ];
        // Two factors of 64 bits: four such products fit but for absurd prices, which saturate.
        let millionths = parts
            .iter()
            .fold(0_u128, |sum, (tokens, price)| sum.saturating_add(u128::from(*tokens) * u128::from(*price)));
        u64::try_from(millionths.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPT: Price =
        Price { input: 2_500_000, output: 10_000_000, cached_input: 1_250_000, cache_creation_input: 3_750_000 };

    #[test]
    fn a_request_uses_what_its_operation_can_cost() {
        let name: Arc<str> = "m".into();
        let [model, served_model, backend, route] = [(); 4].map(|()| Arc::clone(&name));
        let context = CostContext { model, served_model, backend, route };
        let weighted = |source: &str| Quantity::Weighted(Arc::new(CostProgram::compile(source).unwrap()));
        let prices = Prices { by_model: BTreeMap::new(), other: GPT };
        for (quantity, without, with_input) in [
            (Quantity::Requests, true, true),
            (Quantity::Concurrency, true, true),
            (Quantity::Tokens(Cost::Total), false, true),
            (Quantity::Tokens(Cost::Input), false, true),
            (Quantity::Tokens(Cost::CachedInput), false, true),
            (Quantity::Tokens(Cost::CacheCreationInput), false, true),
            (Quantity::Tokens(Cost::Output), false, false),
            (Quantity::Tokens(Cost::Reasoning), false, false),
            (Quantity::Money(Arc::new(prices)), false, true),
            (weighted("total_tokens * 2u"), false, true),
            (weighted("total_tokens + 1u"), true, true),
        ] {
            let used = [TokenUse::None, TokenUse::Input, TokenUse::InputAndOutput]
                .map(|tokens| quantity.is_used_by(tokens, &context));
            assert_eq!(used, [without, with_input, true], "{quantity:?}");
        }
    }

    #[test]
    fn money_is_counted_in_millionths_by_kind_of_token() {
        let usage = Usage { input: 1_000, output: 100, total: 1_100, cached_input: 600, ..Usage::default() };
        // 400 x 2.50 + 600 x 1.25 + 100 x 10 dollars a million.
        assert_eq!(GPT.cost(&usage), 1_000 + 750 + 1_000);
    }

    #[test]
    fn a_fraction_of_a_millionth_is_charged_whole() {
        let cheap = Price { input: 1, ..Price::default() };
        assert_eq!(cheap.cost(&Usage { input: 1, ..Usage::default() }), 1);
        assert_eq!(cheap.cost(&Usage::default()), 0);
    }

    #[test]
    fn absurd_usage_saturates() {
        let all = u64::MAX;
        let dear = Price { input: all, output: all, cached_input: all, cache_creation_input: all };
        assert_eq!(dear.cost(&Usage { input: all, output: all, total: all, ..Usage::default() }), all);
    }

    #[test]
    fn a_model_without_a_price_costs_what_all_others_do() {
        let other = Price { input: 9, ..Price::default() };
        let prices = Prices { by_model: BTreeMap::from([(Arc::from("gpt"), GPT)]), other };
        assert_eq!((prices.of("gpt"), prices.of("new")), (&GPT, &other));
    }
}
